"""What a device can do at best: measured rates of matrix products and of copies."""

import math
import time
from collections.abc import Callable, Iterable
from functools import partial

import torch

from tune_speed.experiments.profiling.result import DeviceRates
from tune_speed.runtime.device import synchronizer

# Matrices grow until a product takes so long [s], so that a slow device is not busy for seconds.
LONG_S = 0.02
MEASURE_S = 0.1
"""Repetitions of one size take so long [s], or one of them if that is longer."""
SMALLEST_MATRIX, LARGEST_MATRIX = 256, 8192
# Larger than the last cache, mostly.
COPY_BYTES = {"cpu": 128 * 1024**2, "cuda": 1024**3}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Arithmetic of the matrix products of a recipe's precisions; fp16 of the others."""


def measure_rates(precisions: Iterable[str], *, device: torch.device) -> DeviceRates:
    # In fp32 on CUDA with the arithmetic that convolutions have there, TF32 by torch's default.
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    try:
        products = {name: matrix_rate(name, device) / 1e12 for name in precisions}
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return DeviceRates(matrix_tflop_per_s=products, memory_gb_per_s=memory_rate(device) / 1e9)


def matrix_rate(precision: str, device: torch.device) -> float:
    """Returns 2 n³ / t [FLOP/s], the best over n × n matrices of n = 256, 512, …."""
    # A network's own kernels may beat a matrix product, where Winograd's convolutions do fewer
    # multiplications.
    best, size, seconds = 0.0, SMALLEST_MATRIX, 0.0
    dtype = DTYPES.get(precision, torch.float16)
    while seconds < LONG_S and size <= LARGEST_MATRIX:
        a, b, out = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(3))
        seconds = shortest_s(partial(torch.mm, a, b, out=out), device)
        best = max(best, 2 * size**3 / seconds)
        size *= 2
    return best


def memory_rate(device: torch.device) -> float:
    """Returns 2 b / t [byte/s] of a copy of b bytes, each of which is read and written."""
    source = torch.ones(COPY_BYTES[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / shortest_s(lambda: target.copy_(source), device)


def shortest_s(call: Callable[[], object], device: torch.device) -> float:
    """Returns the shortest of several times [s], as what disturbs can only slow a device down."""
    synchronize, best_s = synchronizer(device), math.inf
    call()
    synchronize()
    until_s = time.perf_counter() + MEASURE_S
    while math.isinf(best_s) or time.perf_counter() < until_s:
        began_s = time.perf_counter()
        call()
        synchronize()
        best_s = min(best_s, time.perf_counter() - began_s)
    return max(best_s, 1e-9)
