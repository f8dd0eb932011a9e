"""What a device can do at best: measured rates of matrix products and of copies.

| rate                    | formula                             | what is timed                    |
|-------------------------|-------------------------------------|----------------------------------|
| matrix [FLOP/s]         | 2 n³ / t                            | product of two n × n matrices    |
| memory [byte/s]         | 2 b / t: each byte read and written | copy of b bytes on the device    |
| host to device [byte/s] | b / t                               | copy of b bytes from the host    |

t is the shortest of several repetitions.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from tune_speed.experiments.profiling.result import DeviceRates

LONG_S = 0.02
"""A repetition this long is long enough [s]."""
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

Clock = Callable[[], float]


def measure_rates(
    precisions: Iterable[str],
    *,
    device: torch.device,
    pin_memory: bool,
    synchronize: Callable[[], None],
    now: Clock = time.perf_counter,
) -> DeviceRates:
    """Returns the device's rates, in about a second.

    Args:
        precisions: of matrix products, as recipes name them.
        device: what is measured.
        pin_memory: whether the host's memory is page-locked.
        synchronize: waits for the device.
        now: a monotonic clock [s].
    """
    products = {name: matrix_rate(DTYPES[name], device, synchronize, now) for name in precisions}
    is_host = device.type == "cpu"
    host = None if is_host else host_rate(device, pin_memory, synchronize, now) / 1e9
    return DeviceRates(
        matrix_tflop_per_s={name: rate / 1e12 for name, rate in products.items()},
        memory_gb_per_s=memory_rate(device, synchronize, now) / 1e9,
        host_to_device_gb_per_s=host,
    )


def matrix_rate(
    dtype: torch.dtype, device: torch.device, synchronize: Callable[[], None], now: Clock
) -> float:
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
            seconds = shortest(multiply, synchronize=synchronize, now=now)
            best = max(best, 2 * size**3 / seconds)
            if seconds >= LONG_S or size >= LARGEST_MATRIX:
                return best
            size *= 2


def memory_rate(device: torch.device, synchronize: Callable[[], None], now: Clock) -> float:
    """Returns 2 b / t [byte/s] of a copy of b bytes."""
    num_bytes = COPY_BYTES.get(device.type, HOST_COPY_BYTES)
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = shortest(lambda: target.copy_(source), synchronize=synchronize, now=now)
    return 2 * num_bytes / seconds


def host_rate(
    device: torch.device, pin_memory: bool, synchronize: Callable[[], None], now: Clock
) -> float:
    """Returns b / t [byte/s] of a copy of b bytes from the host to the device."""
    source = torch.ones(HOST_COPY_BYTES, dtype=torch.uint8, pin_memory=pin_memory)
    target = torch.empty(HOST_COPY_BYTES, dtype=torch.uint8, device=device)
    seconds = shortest(
        lambda: target.copy_(source, non_blocking=pin_memory), synchronize=synchronize, now=now
    )
    return HOST_COPY_BYTES / seconds


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
    """Lets fp32 products use TF32 where convolutions may."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
