"""How long devices take to average their gradients, measured apart from a training.

As many processes as the recipe has devices meet, as in `together`, and average as many bytes a few
times over. In a training, part of that hides behind the backward: an upper bound.
"""

import os
import statistics
import tempfile
import time
from multiprocessing import connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing

from tune_speed.training.ranks import Ranks

REPEATS = 5
WAIT_S = 120.0
"""Longest time for all of it, the start of the processes included [s]."""


def averaging_s(num_bytes: int, *, size: int, device: torch.device) -> float | None:
    """Returns the median time of averaging `num_bytes` of fp32 over `size` devices [s].

    None if that many could not meet in time, or a process died.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="tune_speed-averaging-") as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        processes = [
            context.Process(
                target=_rank, args=(rank, size, device.type, meeting, num_bytes, there), daemon=True
            )
            for rank in range(size)
        ]
        try:
            for process in processes:
                process.start()
            there.close()
            seconds: float | None = here.recv() if here.poll(WAIT_S) else None
        except EOFError:  # All are gone, and none has said anything.
            seconds = None
        finally:
            for process in processes:
                process.kill()
                process.join()
            here.close()
    return seconds


def _rank(
    rank: int,
    size: int,
    device_type: str,
    meeting: str,
    num_bytes: int,
    pipe: connection.Connection,
) -> None:
    """What a process does; rank 0 says what came of it."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # All ranks are on this machine.
    is_cuda = device_type == "cuda"
    device = torch.device(f"cuda:{rank}" if is_cuda else "cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    backend = "nccl" if is_cuda else "gloo"
    with Ranks.joined(
        rank=rank, size=size, backend=backend, init_method=meeting, wait_s=WAIT_S
    ) as ranks:
        gradients = torch.zeros(max(1, num_bytes // 4), device=device)
        times = [_once(gradients) for _ in range(1 + REPEATS)]
        if ranks.is_first:
            pipe.send(statistics.median(times[1:]))
        ranks.gather(None)  # Nobody leaves before all are done.


def _once(gradients: torch.Tensor) -> float:
    began_s = time.perf_counter()
    dist.all_reduce(gradients)
    gradients.sum().item()  # Waits for the device.
    return time.perf_counter() - began_s
