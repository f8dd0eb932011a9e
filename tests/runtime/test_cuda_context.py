"""What a process takes of a GPU beside its tensors, measured with a program in torch's place."""

import sys
from pathlib import Path

import pytest
import torch

from tune_speed.runtime.cuda_context import GIB, context_gib
from tune_speed.runtime.device import memory_limit_gib
from tune_speed.tuning.ray.step_rate import PackedSteps

CUDA = torch.device("cuda", 0)
FREE_GIB = 20


@pytest.fixture
def starts(one_h200: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A GPU with 20 GiB free, whose new process leaves 0.5 GiB less; a line here for each start."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (FREE_GIB * GIB, 24 * GIB))
    properties = torch.cuda.get_device_properties(CUDA)
    monkeypatch.setattr(properties, "total_memory", 24 * GIB)
    context_gib.cache_clear()
    leave(monkeypatch, tmp_path, int((FREE_GIB - 0.5) * GIB))
    return tmp_path / "starts"


def leave(monkeypatch: pytest.MonkeyPatch, folder: Path, left: object) -> None:
    python = folder / "python"
    python.write_text(f"#!/bin/sh\necho started >> {folder}/starts\necho {left}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


def test_context_is_what_a_new_process_takes_and_is_measured_once_a_node(starts: Path) -> None:
    assert context_gib(CUDA) == pytest.approx(0.5)
    # Another process of the node reads it.
    context_gib.cache_clear()
    assert context_gib(CUDA) == pytest.approx(0.5)
    assert starts.read_text() == "started\n"


@pytest.mark.parametrize("left", ["nothing", 21 * GIB, 20 * GIB, 16 * GIB])
def test_what_cannot_be_measured_counts_as_nothing_and_is_not_stored(
    starts: Path, monkeypatch: pytest.MonkeyPatch, left: object
) -> None:
    leave(monkeypatch, starts.parent, left)
    assert context_gib(CUDA) == 0.0
    leave(monkeypatch, starts.parent, int(19.25 * GIB))
    context_gib.cache_clear()
    assert context_gib(CUDA) == pytest.approx(0.75)


@pytest.mark.usefixtures("starts")
@pytest.mark.parametrize("trials", [2, 5, 8, 16])
def test_trials_fit_their_gpu_with_their_contexts(trials: int) -> None:
    each_gib = memory_limit_gib(CUDA, gpu_fraction=1 / trials, cpu_fraction=1.0)
    assert 20 < trials * (each_gib + 0.5) < 23.5
    assert memory_limit_gib(CUDA, gpu_fraction=1.0, cpu_fraction=1.0) == 24


@pytest.mark.usefixtures("starts")
def test_concurrent_auto_counts_a_context_for_each_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 4 * GIB)
    steps = PackedSteps.__new__(PackedSteps)
    steps._device = CUDA
    assert steps.memory_frac() == pytest.approx(4.5 / 24)
