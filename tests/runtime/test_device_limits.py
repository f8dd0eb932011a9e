"""What a device is told and asked, with a stand-in where that is a GPU or the system itself."""

import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from helpers.runtime.gpus import UUID
from helpers.training.tiny import CPU

from tune_speed.core.errors import ConfigError
from tune_speed.runtime import device, hardware
from tune_speed.runtime.device import (
    GIB,
    DataLimit,
    device_key,
    device_of,
    limit_memory,
    memory_limit_gib,
    peak_memory_gib,
    release_memory,
    reset_peak_memory,
    set_up_process,
    status_bytes,
)
from tune_speed.runtime.hardware import describe_system, read_text

GPU = torch.device("cuda", 1)
MIB = 1024**2


class Cuda:
    """Calls of torch.cuda, in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, total: int = 24 * GIB) -> None:
        self.calls: list[tuple[Any, ...]] = []
        facts = SimpleNamespace(uuid=UUID.removeprefix("GPU-"), total_memory=total)
        answers = {"get_device_properties": facts, "max_memory_allocated": 3 * GIB}
        answers |= {"get_device_name": "NVIDIA H200", "current_device": 0}
        for name in ("set_device", "empty_cache", "reset_peak_memory_stats"):
            monkeypatch.setattr(torch.cuda, name, self._noted(name))
        monkeypatch.setattr(
            torch.cuda, "set_per_process_memory_fraction", self._noted("set_fraction")
        )
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)

    def _noted(self, name: str) -> Any:
        return lambda *given: self.calls.append((name, *given))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    monkeypatch.setattr(device, "context_gib", lambda _: 0.75)
    return Cuda(monkeypatch)


class Libc:
    """Takes malloc's options."""

    def __init__(self) -> None:
        self.options: list[tuple[int, int]] = []

    def mallopt(self, option: int, value: int) -> None:
        self.options.append((option, value))


def test_cpu_process_keeps_the_memory_of_a_step_and_a_gpus_gets_its_device(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    libc, threads = Libc(), list[int]()
    monkeypatch.setattr(device, "_libc", lambda: libc)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    set_up_process(CPU, cpu_threads=3)
    # From malloc.h: M_TRIM_THRESHOLD is -1, where -1 is never; M_MMAP_MAX is -4, 0 is none.
    assert libc.options == [(-1, -1), (-4, 0)] and cuda.calls == []
    set_up_process(GPU, cpu_threads=5)
    assert threads == [3, 5]
    assert len(libc.options) == 2 and cuda.calls == [("set_device", GPU)]


@pytest.mark.parametrize(("fraction", "is_set"), [(0.0, False), (0.5, True), (1.0, False)])
def test_tensors_of_a_share_get_nine_tenths_of_it_without_the_context(
    cuda: Cuda, fraction: float, is_set: bool
) -> None:
    limit_memory(GPU, gpu_fraction=fraction)
    share = 0.9 * (fraction - 0.75 / 24)
    assert cuda.calls == ([("set_fraction", pytest.approx(share), GPU)] if is_set else [])
    limit_gib = memory_limit_gib(GPU, gpu_fraction=fraction, cpu_fraction=1.0, memory_gib=1.0)
    assert limit_gib == pytest.approx(24 * share if is_set else 24)


def test_share_that_is_no_more_than_the_context_is_refused(cuda: Cuda) -> None:
    with pytest.raises(ConfigError, match=r"context of 0\.75 GiB, but got 0\.03125 of 24 GiB"):
        limit_memory(GPU, gpu_fraction=1 / 32)


def test_peak_and_cache_of_a_gpu_are_its_allocators(cuda: Cuda) -> None:
    assert peak_memory_gib(GPU) == 3.0 and device_key(GPU) == f"gpu-{UUID.removeprefix('GPU-')}"
    reset_peak_memory(GPU)
    release_memory(GPU)
    assert cuda.calls == [("reset_peak_memory_stats", GPU), ("empty_cache",)]


def test_memory_of_a_trial_is_what_it_is_given_or_a_share_of_the_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "_node_memory_bytes", lambda: 8 * GIB)

    def limit(cpu_fraction: float, memory_gib: float | None = None) -> float:
        return memory_limit_gib(
            CPU, gpu_fraction=0.1, cpu_fraction=cpu_fraction, memory_gib=memory_gib
        )

    assert [limit(0.25), limit(1.0), limit(2.0), limit(0.25, 3.5)] == [2.0, 8.0, 8.0, 3.5]


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What a process has in use and may use, in bytes; its limit is noted and not set."""
    known = {"used": 100 * MIB, "limit": float("inf")}
    monkeypatch.setattr(device, "status_bytes", lambda name: known["used"])
    monkeypatch.setattr(device, "_soft_limit", lambda: known["limit"])
    monkeypatch.setattr(device, "_set_soft_limit", lambda value: known.update(limit=value))
    return known


def test_bound_counts_from_what_the_process_had_and_leaves_headroom_after_a_failure(
    data: dict[str, float],
) -> None:
    bound = DataLimit()
    bound.renew_headroom()
    assert data["limit"] == float("inf")
    bound.set(200 * MIB)
    assert data["limit"] == 300 * MIB
    data["used"] = 250 * MIB
    bound.set(400 * MIB)
    assert data["limit"] == 500 * MIB
    bound.renew_headroom()
    assert data["limit"] == 500 * MIB
    data["used"] = 480 * MIB
    bound.renew_headroom()
    assert data["limit"] == 544 * MIB


@pytest.mark.parametrize(("used", "is_near"), [(400, False), (401, True)])
def test_near_is_past_four_fifths_of_what_is_allowed(
    data: dict[str, float], used: int, is_near: bool
) -> None:
    data.update(used=used * MIB, limit=500 * MIB)
    assert DataLimit().is_near() is is_near


def test_kernels_entries_are_in_bytes() -> None:
    resident = status_bytes("VmRSS")
    assert resident == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert status_bytes("VmNothing") is None


def test_container_is_read_from_this_processs_own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"/proc/self/cgroup": f"0::/docker/{'3e1f' * 16}", "/proc/self/mountinfo": ""}
    read = hardware.read_text
    monkeypatch.setattr(
        hardware, "read_text", lambda path: texts[str(path)] if str(path) in texts else read(path)
    )
    assert describe_system(CPU).container_id == "3e1f" * 16
    mount = f"9 8 0:1 /var/lib/docker/containers/{'ab12' * 16}/hosts /etc/hosts rw"
    texts.update({"/proc/self/cgroup": "0::/", "/proc/self/mountinfo": mount})
    assert describe_system(CPU).container_id == "ab12" * 16


def test_file_of_the_system_that_is_empty_or_not_there_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(" performance \n")
    (tmp_path / "b").write_text("\n")
    names = ("a", "b", "c")
    assert [read_text(tmp_path / name) for name in names] == ["performance", None, None]


def test_several_devices_are_named_with_their_number(cuda: Cuda) -> None:
    assert str(device_of(GPU, 1)) == "NVIDIA H200"
    assert str(device_of(GPU, 2)) == "2 x NVIDIA H200"


@pytest.mark.parametrize(
    ("hard", "wanted", "soft"),
    [(-1, 5000, 5000), (4000, 5000, 4000), (9000, 5000, 5000), (9000, float("inf"), None)],
)
def test_limit_of_data_is_set_below_the_hard_one_only(
    monkeypatch: pytest.MonkeyPatch, hard: int, wanted: float, soft: int | None
) -> None:
    calls: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: (7000, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda what, both: calls.append((what, both)))
    device._set_soft_limit(wanted)
    assert calls == ([] if soft is None else [(resource.RLIMIT_DATA, (soft, hard))])
    assert device._soft_limit() == 7000
    monkeypatch.setattr(resource, "getrlimit", lambda what: (resource.RLIM_INFINITY, hard))
    assert device._soft_limit() == float("inf")
