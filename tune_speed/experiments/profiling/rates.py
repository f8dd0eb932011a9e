"""What a device can do at best: measured rates of matrix products and of copies.

With t the shortest of several repetitions, the matrix rate is 2 n³ / t [FLOP/s] for two n × n
matrices, and the memory rate 2 b / t [byte/s] for b bytes, each of which is read and written.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from tune_speed.experiments.profiling.result import DeviceRates

# A repetition this long is long enough [s].
LONG_S = 0.02
MEASURE_S = 0.15
"""Repetitions of one size end by then [s], but for the first two."""
MOST_REPEATS = 20
SMALLEST_MATRIX, LARGEST_MATRIX = 256, 8192
# Larger than the last cache, mostly.
COPY_BYTES = {"cpu": 128 * 1024**2, "cuda": 1024**3}
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "half": torch.float16,
    "half_fp32_norms": torch.float16,
}
"""Arithmetic of the matrix products of each of a recipe's precisions."""

Timed = Callable[[Callable[[], object]], float]
"""Returns the shortest time of a call [s]."""


def measure_rates(
    precisions: Iterable[str], *, device: torch.device, synchronize: Callable[[], None]
) -> DeviceRates:
    timed = partial(shortest, synchronize=synchronize, now=time.perf_counter)
    products = {name: matrix_rate(DTYPES[name], device, timed) for name in precisions}
    return DeviceRates(
        matrix_tflop_per_s={name: rate / 1e12 for name, rate in products.items()},
        memory_gb_per_s=memory_rate(device, timed) / 1e9,
    )


def matrix_rate(dtype: torch.dtype, device: torch.device, timed: Timed) -> float:
    """Returns 2 n³ / t [FLOP/s], the best over n = 256, 512, … that take no longer than needed."""
    # A network's own kernels may beat a matrix product, where Winograd's convolutions do fewer
    # multiplications. Sizes grow only until a repetition takes `LONG_S`, so that a slow device is
    # not busy for seconds.
    best, size = 0.0, SMALLEST_MATRIX
    # In fp32 on CUDA with the arithmetic that convolutions have there, TF32 by torch's default.
    with _as_convolutions():
        while True:
            a, b, out = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(3))
            seconds = timed(partial(torch.mm, a, b, out=out))
            best = max(best, 2 * size**3 / seconds)
            if seconds >= LONG_S or size >= LARGEST_MATRIX:
                return best
            size *= 2


def memory_rate(device: torch.device, timed: Timed) -> float:
    """Returns 2 b / t [byte/s] of a copy of b bytes."""
    num_bytes = COPY_BYTES[device.type]
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / timed(lambda: target.copy_(source))


def shortest(
    call: Callable[[], object], *, synchronize: Callable[[], None], now: Callable[[], float]
) -> float:
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
def _as_convolutions() -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
