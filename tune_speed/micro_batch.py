"""The micro-batch that a recipe runs with: halved when memory runs out, or the fastest that fits."""

import gc
import statistics
import time

import torch
from torch.nn import functional

from tune_speed.data.split import Splits
from tune_speed.device import is_out_of_memory, synchronizer
from tune_speed.recipe import Recipe
from tune_speed.train import AUTOCAST_DTYPES

PROBE_STEPS = 3
SMALLEST_SHARE = 64
"""Micro-batches below effective_batch_size / 64 are not probed: accumulation only costs there."""


def halved(recipe: Recipe) -> Recipe | None:
    """Returns `recipe` with at most half the micro-batch and the same effective batch size.

    The micro-batch is halved and the accumulation doubled; where the micro-batch is odd, the
    largest divisor of the effective batch size below its half is taken. None below 1.
    """
    assert recipe.batch_size is not None
    for batch_size in range(recipe.batch_size // 2, 0, -1):
        if recipe.samples_per_step % batch_size == 0:
            return recipe.with_micro_batch(batch_size)
    return None


def fastest(recipe: Recipe, splits: Splits, *, device: torch.device) -> Recipe:
    """Returns `recipe` with the fastest micro-batch that fits, for `accumulation_steps: auto`.

    Probes effective_batch_size / 1, 2, 4 … (whole numbers only) with forward and backward on dummy
    data, and compares the median time per sample. A recipe with a given micro-batch is returned
    as it is.

    Raises: torch.OutOfMemoryError (or the CPU's like) if not even the smallest fits.
    """
    if recipe.accumulation_steps != "auto":
        return recipe
    times: dict[int, float] = {}
    for batch_size in _candidates(recipe.samples_per_step):
        candidate = recipe.with_micro_batch(batch_size)
        try:
            times[batch_size] = _seconds_per_sample(candidate, splits, device=device)
        except Exception as error:
            if not is_out_of_memory(error) or batch_size == _candidates(recipe.samples_per_step)[-1]:
                raise
        release_memory(device)
    return recipe.with_micro_batch(min(times, key=lambda size: times[size]))


def release_memory(device: torch.device) -> None:
    """Gives back what dead tensors still hold, so that the next try starts from nothing."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _candidates(effective_batch_size: int) -> list[int]:
    sizes = [effective_batch_size >> power for power in range(SMALLEST_SHARE.bit_length())]
    return [size for size in sizes if size > 0 and effective_batch_size % size == 0]


def _seconds_per_sample(recipe: Recipe, splits: Splits, *, device: torch.device) -> float:
    """Returns the median seconds per sample of forward and backward, after one warm-up."""
    _, height, width, channels = splits.train.pixels.shape
    assert recipe.batch_size is not None
    size = min(recipe.batch_size, len(splits.train.labels))
    memory_format = torch.channels_last if recipe.channels_last else torch.contiguous_format
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        model = recipe.model.build(
            in_channels=channels, num_classes=splits.num_classes, image_size=max(height, width)
        ).to(device=device, memory_format=memory_format)
        images = torch.zeros((size, channels, height, width), device=device)
        images = images.contiguous(memory_format=memory_format)
        labels = torch.zeros(size, dtype=torch.long, device=device)
        dtype = AUTOCAST_DTYPES[recipe.precision]
        synchronize, times = synchronizer(device), []
        for _ in range(1 + PROBE_STEPS):
            synchronize()
            started = time.perf_counter()
            with torch.autocast(device.type, dtype, enabled=dtype is not None):
                loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            synchronize()
            times.append(time.perf_counter() - started)
    return statistics.median(times[1:]) / size
