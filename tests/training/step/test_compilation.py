import os
import platform
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tune_speed.training.build import (
    FOLDER,
    MOST_GRAPHS,
    RECOMPILE_LIMIT,
    compiled,
    keep_on_disk,
)

CHECKS = Path(__file__).parents[2] / "helpers/training/compilations.py"


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, "")  # Put back to what it was, whatever a test sets.
    monkeypatch.delenv(FOLDER)


def test_folder_is_the_user_s_own(tmp_path: Path) -> None:
    keep_on_disk(tmp_path)
    folder = Path(os.environ[FOLDER])
    assert folder == tmp_path / "compiled" / platform.node() / f"torch-{torch.__version__}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_folder_that_another_process_made_is_taken(tmp_path: Path) -> None:
    keep_on_disk(tmp_path)
    folder = os.environ.pop(FOLDER)
    keep_on_disk(tmp_path)
    assert os.environ[FOLDER] == folder


def test_folder_that_the_user_names_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, "/elsewhere")
    keep_on_disk(tmp_path)
    assert os.environ[FOLDER] == "/elsewhere"
    assert list(tmp_path.iterdir()) == []


def test_cache_that_cannot_be_made_is_torch_s_default(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    keep_on_disk(tmp_path / "file")
    assert FOLDER not in os.environ


def test_what_is_compiled_is_forgotten_for_another_make_and_when_it_is_too_much(monkeypatch):
    from torch._dynamo.utils import counters

    resets, reset = list[int](), torch.compiler.reset

    def watched() -> None:
        resets.append(len(resets))
        reset()

    def forgets(model: nn.Module, *, mode: str = "default") -> bool:
        before = len(resets)
        compiled(model, mode=mode)  # Compiles nothing before its first call.
        return len(resets) > before

    monkeypatch.setattr(torch.compiler, "reset", watched)
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 8)
    forgets(nn.Linear(3, 2))
    assert not forgets(nn.Linear(3, 2))
    assert forgets(nn.Linear(3, 4)) and forgets(nn.Sequential(nn.Linear(3, 4)))
    assert forgets(nn.Linear(3, 2), mode="max-autotune-no-cudagraphs")
    assert not forgets(nn.Linear(3, 2), mode="max-autotune-no-cudagraphs")
    # Recorded CUDA graphs hold one model's addresses.
    assert all(forgets(nn.Linear(3, 2), mode="reduce-overhead") for _ in range(2))
    assert forgets(nn.Linear(3, 2))
    for added, is_too_much in ((MOST_GRAPHS, False), (1, True), (MOST_GRAPHS, False)):
        counters["stats"]["unique_graphs"] += added
        assert forgets(nn.Linear(3, 2)) == is_too_much
    assert torch._dynamo.config.recompile_limit == RECOMPILE_LIMIT


@pytest.mark.slow
def test_two_processes_that_compile_at_once_keep_the_same(tmp_path: Path) -> None:
    variables = {"TUNE_SPEED_CACHE": str(tmp_path)}
    environment = {k: v for k, v in os.environ.items() if k != FOLDER} | variables

    def begin(*words: str) -> "subprocess.Popen[str]":
        command = [sys.executable, str(CHECKS), *words]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    both = [begin(), begin()]
    first, second = (process.communicate(timeout=300)[0].split() for process in both)
    third = begin("more").communicate(timeout=300)[0].split()
    assert first[0] == second[0] == third[0]  # Losses, to the bit.
    assert third[1:] == ["found", "reused", "freed"]


def make_of(model: nn.Module, *, mode: str = "default") -> str:
    from tune_speed.training.build import _key

    return _key(model, mode)


def test_models_of_one_make_share_code_whatever_their_weights() -> None:
    with torch.device("meta"):
        plain = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        same = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        others = [
            nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
            nn.Sequential(nn.Linear(3, 2, bias=False), nn.BatchNorm1d(2)),
            nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False)),
            nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.ReLU()),
            nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).half(),
        ]
        strided = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        strided[0].weight = nn.Parameter(torch.empty((3, 2)).t())
    others += [strided, nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))]  # On the CPU.
    assert make_of(same) == make_of(plain)
    makes = [make_of(plain), *map(make_of, others), make_of(plain, mode="max-autotune")]
    assert len(set(makes)) == len(makes)


def test_code_is_made_for_a_number_of_threads_and_for_a_class_not_its_name() -> None:
    def local() -> nn.Module:
        class Same(nn.Linear):
            pass

        return Same(1, 1)

    class Same(nn.Linear):
        pass

    assert str(local()) == str(Same(1, 1)) and make_of(local()) != make_of(Same(1, 1))
    model, threads = nn.Linear(2, 2), torch.get_num_threads()
    before = make_of(model)
    torch.set_num_threads(threads + 1)
    try:
        assert make_of(model) != before
    finally:
        torch.set_num_threads(threads)
    assert make_of(model) == before


def test_figures_of_what_is_kept_compiled() -> None:
    assert (MOST_GRAPHS, RECOMPILE_LIMIT, FOLDER) == (8, 64, "TORCHINDUCTOR_CACHE_DIR")


def test_whatever_is_compiled_is_kept_beside_the_decoded_data(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(tmp_path))
    model = nn.Linear(2, 2)
    forward: Any = compiled(model)
    assert Path(os.environ[FOLDER]).is_relative_to(tmp_path / "compiled")
    assert forward.weight is model.weight
