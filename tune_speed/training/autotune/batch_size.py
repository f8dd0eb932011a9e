"""The micro-batch that a device works best with, for `batch_size: auto`.

The effective batch size changes with it, and the best learning rate too: give the optimizer's rate
`lr_per_examples`, by which it is scaled linearly. For a batch that only has to fit while the
effective batch size stays, `accumulation_steps: auto` is the thing (`micro_batch`).
"""

import math
from collections.abc import Callable
from itertools import repeat

import torch

from tune_speed.data.split import Splits
from tune_speed.runtime.device import release_memory
from tune_speed.training.autotune.micro_batch import median_s, seconds_or_none
from tune_speed.training.autotune.probe_step import probe_step
from tune_speed.training.build import open_dummy
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import micro_batch_of

# Where doubling begins: the smallest batch that S1 names; smaller only where it does not fit.
SMALLEST = 16
# A larger batch must have more throughput than that to be worth it.
LEAST_GAIN = 0.03
RESOLUTION = 8
"""The largest that fits is found to an eighth of it."""

Probe = Callable[[int], float | None]
"""Seconds per sample with a micro-batch; infinite where it cannot be, None where memory ends."""


def resolved(recipe: Recipe, splits: Splits, *, device: torch.device) -> Recipe:
    """Returns `recipe` with a number for `batch_size: auto`; any other recipe as it is.

    It is the smallest micro-batch within 3 % of the best throughput among those that fit, by real
    optimizer steps on dummy data: doubled from 16 until memory ends, then halving the interval, or
    until two doublings gained nothing, or to the whole training part. Where none fits, it is 1.

    """
    if recipe.batch_size != "auto":
        return recipe
    num_train = len(splits.train.labels)

    def with_batch(batch_size: int) -> Recipe:
        return recipe.model_copy(update={"batch_size": batch_size})

    def probe(batch_size: int) -> float | None:
        seconds = seconds_or_none(_seconds_per_sample, with_batch(batch_size), splits, device)
        release_memory(device)
        return seconds

    times = probed(probe, most=num_train)
    # A size that leaves a lone image over at the epoch's end is passed over, as batch norm may
    # refuse it.
    whole = {size: seconds for size, seconds in times.items() if num_train % size != 1}
    return with_batch(smallest_near_best(whole or times) if times else 1)


def probed(probe: Probe, *, most: int) -> dict[int, float]:
    """Returns the seconds per sample of the micro-batches that fit, among those that were tried.

    `most` is the largest that makes sense: the training part.
    """
    times: dict[int, float] = {}
    size = min(SMALLEST, most)
    while (seconds := probe(size)) is not None:
        times[size] = seconds
        *before, last, newest = math.inf, *times.values()
        is_level = len(times) > 2 and min(last, newest) * (1 + LEAST_GAIN) > min(before)
        if size == most or is_level:
            return times
        size = min(2 * size, most)
    return times | _bisected(probe, fits=max(times, default=0), fails=size)


def _bisected(probe: Probe, *, fits: int, fails: int) -> dict[int, float]:
    """Returns what fits between a size that does (0: none does) and one that does not."""
    times: dict[int, float] = {}
    while fails - fits > max(1, fits // RESOLUTION):
        size = (fits + fails) // 2
        seconds = probe(size)
        if seconds is None:
            fails = size
        else:
            fits, times[size] = size, seconds
    return times


def smallest_near_best(times: dict[int, float]) -> int:
    """Returns the smallest micro-batch whose throughput is within 3 % of the best.

    `times` are seconds per sample by micro-batch, at least one.
    """
    best = min(times.values())
    return min(size for size, seconds in times.items() if seconds <= best * (1 + LEAST_GAIN))


def _seconds_per_sample(recipe: Recipe, splits: Splits, device: torch.device) -> float:
    """Returns the median seconds per sample of whole optimizer steps, after one warm-up."""
    # Unlike the micro-batches of one effective batch, those of different ones also differ in how
    # many samples share the cost of an update.
    dummy = open_dummy(recipe, splits, num_samples=micro_batch_of(recipe), device=device)
    (batch,) = dummy.epoch(0)
    with probe_step(recipe, splits, device=device) as take_step:
        counts: list[int] = []
        step_s = median_s(lambda: counts.append(take_step(repeat(batch))), device=device)
    return step_s / counts[0]
