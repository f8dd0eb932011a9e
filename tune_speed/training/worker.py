"""Sets a process up for the trials that it trains: device, threads, memory, place among ranks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch

from tune_speed.core.errors import DeviceFailed
from tune_speed.runtime import device as devices
from tune_speed.training.ranks import WAIT_S, Ranks
from tune_speed.training.trial import Allotment


def open_device(allotment: Allotment) -> torch.device:
    """Gives this process the allotted device, threads and memory. Raises: ConfigError."""
    device = devices.resolve_device(allotment.device)
    devices.set_up_process(device, cpu_threads=allotment.cpu_threads)
    share: float | None = None
    if allotment.memory_gib is not None:
        share = min(1.0, allotment.memory_gib * 2**30 / psutil.virtual_memory().total)
    devices.limit_memory(device, gpu_fraction=allotment.gpu_fraction, cpu_fraction=share)
    return device


def ends_process(error: Exception, refuse: tuple[type[Exception], ...]) -> bool:
    """Returns whether a process in which `DeviceFailed` is refused trains nothing after `error`."""
    return DeviceFailed in refuse and devices.is_device_failure(error)


@contextmanager
def local_rank(
    rank: int, size: int, device: torch.device, *, folder: Path, wait_s: float = WAIT_S
) -> Iterator[Ranks]:
    """Joins the ranks on this machine that meet in a folder; on GPUs by NCCL, else by gloo.

    Ranks count from 0. `device` is `cpu`, or a GPU by its index; `folder` is empty before the first
    of them comes; `wait_s` is the longest wait for another [s].
    """
    # Nobody beyond this machine need reach the ranks.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = "gloo"
    if device.type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(device)
    meeting = (folder / "meeting").as_uri()
    with Ranks.joined(
        rank=rank, size=size, backend=backend, init_method=meeting, wait_s=wait_s
    ) as ranks:
        yield ranks
