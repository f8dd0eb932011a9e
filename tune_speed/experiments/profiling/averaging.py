"""How long devices take to average their gradients, measured apart from a training.

As many processes as the recipe has devices average as many bytes a few times over.
"""

import statistics
import tempfile
import time
from multiprocessing import connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing

from tune_speed.training.worker import local_rank

REPEATS = 5
WAIT_S = 120.0
"""Longest time for all of it, the start of the processes included [s]."""


def averaging_s(num_bytes: int, *, size: int, device: torch.device) -> float | None:
    """Returns the median time of averaging `num_bytes` of fp32 over `size` devices [s]; 0 for one.

    None if that many could not meet in time, or a process died.
    """
    if size == 1:
        return 0.0
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="tune_speed-averaging-") as folder:
        arguments = (size, device.type, Path(folder), num_bytes, there)
        processes = [
            context.Process(target=_rank, args=(rank, *arguments), daemon=True)
            for rank in range(size)
        ]
        try:
            for process in processes:
                process.start()
            there.close()
            seconds: float | None = here.recv() if here.poll(WAIT_S) else None
        # All are gone, without a result.
        except EOFError:
            seconds = None
        finally:
            for process in processes:
                process.kill()
                process.join()
            here.close()
    return seconds


def _rank(
    rank: int, size: int, kind: str, folder: Path, num_bytes: int, pipe: connection.Connection
) -> None:
    """What a process does; rank 0 sends what it measured."""
    device = torch.device(f"cuda:{rank}" if kind == "cuda" else "cpu")
    with local_rank(rank, size, device, folder=folder, wait_s=WAIT_S) as ranks:
        gradients, times = torch.zeros(max(1, num_bytes // 4), device=device), list[float]()
        for _ in range(1 + REPEATS):
            # In a training, part of that hides behind the backward: this is an upper bound.
            began_s = time.perf_counter()
            dist.all_reduce(gradients)
            # Waits for the device.
            gradients.sum().item()
            times.append(time.perf_counter() - began_s)
        if ranks.is_first:
            pipe.send(statistics.median(times[1:]))
        # Nobody leaves before all are done.
        ranks.gather(None)
