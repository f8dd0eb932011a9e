"""What a device can do at best: measured rates of matrix products and of copies.

With t the shortest of several repetitions, the matrix rate is 2 n³ / t [FLOP/s] for two n × n
matrices, the memory rate 2 b / t [byte/s] for b bytes, each read and written, and that from host to
device b / t. How long devices take to average their gradients is measured apart, by as many
processes as the recipe has devices.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import connection
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing

from tune_speed.experiments.profiling.result import DeviceRates
from tune_speed.runtime.temporary import TemporaryFolder
from tune_speed.training.worker import local_rank

# A repetition this long is long enough [s].
LONG_S = 0.02
MEASURE_S = 0.15
"""Repetitions of one size end by then [s], but for the first two."""
MOST_REPEATS = 20
SMALLEST_MATRIX, LARGEST_MATRIX = 256, 8192
# Larger than the last cache, mostly.
COPY_BYTES = {"cpu": 128 * 1024**2, "cuda": 1024**3}
HOST_COPY_BYTES = 64 * 1024**2
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "half": torch.float16,
    "half_fp32_norms": torch.float16,
}
"""Arithmetic of the matrix products of each of a recipe's precisions."""
AVERAGINGS = 5
WAIT_S = 120.0
"""Longest time for averaging, the start of the processes included [s]."""

Clock = Callable[[], float]
Timed = Callable[[Callable[[], object]], float]
"""Returns the shortest time of a call [s]."""


def measure_rates(
    precisions: Iterable[str],
    *,
    device: torch.device,
    pin_memory: bool,
    synchronize: Callable[[], None],
) -> DeviceRates:
    """Returns the device's rates; `pin_memory`: the host's memory is page-locked."""
    timed = partial(shortest, synchronize=synchronize, now=time.perf_counter)
    products = {name: matrix_rate(DTYPES[name], device, timed) for name in precisions}
    return DeviceRates(
        matrix_tflop_per_s={name: rate / 1e12 for name, rate in products.items()},
        memory_gb_per_s=memory_rate(device, timed) / 1e9,
        host_to_device_gb_per_s=None
        if device.type == "cpu"
        else host_rate(device, pin_memory, timed) / 1e9,
    )


def matrix_rate(dtype: torch.dtype, device: torch.device, timed: Timed) -> float:
    """Returns 2 n³ / t [FLOP/s], the best over n = 256, 512, … that take no longer than needed."""
    # A network's own kernels may beat a matrix product, where Winograd's convolutions do fewer
    # multiplications. Sizes grow only until a repetition takes `LONG_S`, so that a slow device is
    # not busy for seconds.
    best, size = 0.0, SMALLEST_MATRIX
    # In fp32 on CUDA with the arithmetic that convolutions have there, TF32 by torch's default.
    with _as_convolutions(device):
        while True:
            a, b, out = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(3))
            multiply = partial(torch.mm, a, b, out=out)
            seconds = timed(multiply)
            best = max(best, 2 * size**3 / seconds)
            if seconds >= LONG_S or size >= LARGEST_MATRIX:
                return best
            size *= 2


def memory_rate(device: torch.device, timed: Timed) -> float:
    """Returns 2 b / t [byte/s] of a copy of b bytes."""
    num_bytes = COPY_BYTES.get(device.type, HOST_COPY_BYTES)
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / timed(lambda: target.copy_(source))


def host_rate(device: torch.device, pin_memory: bool, timed: Timed) -> float:
    """Returns b / t [byte/s] of a copy of b bytes from the host to the device."""
    source = torch.ones(HOST_COPY_BYTES, dtype=torch.uint8, pin_memory=pin_memory)
    target = torch.empty(HOST_COPY_BYTES, dtype=torch.uint8, device=device)
    return HOST_COPY_BYTES / timed(lambda: target.copy_(source, non_blocking=pin_memory))


def shortest(call: Callable[[], object], *, synchronize: Callable[[], None], now: Clock) -> float:
    """Returns the shortest time of a call [s]; the first call, which warms up, does not count."""
    # The shortest, as what disturbs can only slow a device down.
    call()
    synchronize()
    best_s, began_s = float("inf"), now()
    for _ in range(MOST_REPEATS):
        call_began_s = now()
        call()
        synchronize()
        ended_s = now()
        best_s = min(best_s, ended_s - call_began_s)
        if ended_s - began_s > MEASURE_S:
            break
    return max(best_s, 1e-9)


@contextmanager
def _as_convolutions(device: torch.device) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def averaging_s(num_bytes: int, *, size: int, device: torch.device) -> float | None:
    """Returns the median time of averaging `num_bytes` of fp32 over `size` devices [s]; 0 for one.

    None if that many could not meet in time, or a process died.
    """
    if size == 1:
        return 0.0
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    with TemporaryFolder() as folder:
        arguments = (size, device.type, folder, num_bytes, there)
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
    device = torch.device(f"cuda:{rank}" if kind == "cuda" else "cpu")
    with local_rank(rank, size, device, folder=folder, wait_s=WAIT_S) as ranks:
        gradients, times = torch.zeros(max(1, num_bytes // 4), device=device), list[float]()
        for _ in range(1 + AVERAGINGS):
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
