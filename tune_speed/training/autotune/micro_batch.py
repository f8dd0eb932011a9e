"""The micro-batch that a recipe runs with: the fastest, or smaller where memory ran out.

With `batch_size: auto` (`resolved`) the effective batch size changes too, and the best learning
rate with it: the optimizer's rate should be `lr_per_examples`, by which it is scaled linearly. With
`accumulation_steps: auto` (`fastest`) the effective batch size stays.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, repeat

import torch
from torch import Tensor

from tune_speed.data.split import Splits
from tune_speed.runtime.device import is_out_of_memory, release_memory, synchronizer
from tune_speed.training.build import build_forward, build_model, open_dummy, step_schedule_of
from tune_speed.training.recipe import Recipe
from tune_speed.training.step import step as steps

Batch = tuple[Tensor, Tensor]
"""Images (B, C, H, W) and labels (B,), on the device."""
TakeStep = Callable[[Iterator[Batch]], int]
"""Does one optimizer step on the next batches and returns how many samples it had."""


@contextmanager
def probe_step(
    recipe: Recipe, splits: Splits, *, device: torch.device, compiles: bool = False
) -> Iterator[TakeStep]:
    """Gives what takes the steps of a recipe, with a model of its own that learns nothing.

    The steps have the shape that the run begins with, which is its quickest where images grow.
    With `compiles` False `torch.compile` is left out. Random numbers are as before afterwards.
    """
    (shape, _), *_ = step_schedule_of(recipe, splits)
    # Frozen steps take less memory than those after them.
    shape = shape._replace(is_frozen=False)
    num_batches = steps.accumulation_of(recipe) * shape.growth
    num_samples = num_batches * steps.micro_batch_of(recipe)

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        model = build_model(recipe, splits, seed=0, device=device)
        model.train()
        forward = build_forward(model, recipe) if compiles else model
        stepper = steps.Stepper.still(model, forward, recipe, device=device)

        def take_step(batches: Iterator[Batch]) -> int:
            stepper.take_still(steps.Group(num_samples, islice(batches, num_batches)), shape)
            return num_samples

        yield take_step


PROBE_STEPS = 3
# A probe ends after so many timed steps, or so many seconds of them.
PROBE_S = 0.5
# Below that share, accumulation only costs.
# Micro-batches below effective_batch_size / 64 are not probed.
SMALLEST_SHARE = 64
# Larger ones are slower still, and one alone may have been disturbed.
# Two sizes in a row this much slower than the best end the search.
WORSE = 1.1


def halved(recipe: Recipe) -> Recipe | None:
    """Returns `recipe` with at most half the micro-batch and the same effective batch size.

    It is the largest such divisor of a device's share of a step. None below 1, and where no file
    could say such a recipe.
    """
    share = recipe.samples_per_step // recipe.devices
    for batch_size in range(steps.micro_batch_of(recipe) // 2, 0, -1):
        if share % batch_size == 0:
            smaller = recipe.with_micro_batch(batch_size)
            if not any(smaller.conflicts()):
                return smaller
    return None


def fastest(recipe: Recipe, splits: Splits, *, device: torch.device) -> Recipe:
    """Returns `recipe` with the fastest micro-batch that fits, for `accumulation_steps: auto`.

    Probes a device's share of it / 64 … 4, 2, 1 (whole numbers only), small ones first, so that the
    first that does not fit is the last that is tried, with forward and backward on dummy data, and
    compares the median time per sample. `torch.compile` is left out. Where none fits, the smallest
    is returned, from which `halved` continues. A recipe with a micro-batch is returned as is.
    """
    if recipe.accumulation_steps != "auto":
        return recipe
    sizes = candidates(recipe.samples_per_step // recipe.devices)
    together = recipe.augmentation.mixed_images
    sizes = [size for size in sizes if size % together == 0]
    times: dict[int, float] = {}
    for batch_size in sizes:
        smaller = recipe.with_micro_batch(batch_size)
        seconds = seconds_or_none(_seconds_per_sample, smaller, splits, device)
        release_memory(device)
        if seconds is None:
            break
        times[batch_size] = seconds
        last_two = list(times.values())[-2:]
        if len(times) > 2 and min(last_two) > WORSE * min(times.values()):
            break
    return recipe.with_micro_batch(min(times, key=lambda size: times[size], default=sizes[0]))


def candidates(effective_batch_size: int) -> list[int]:
    """Returns the micro-batches to probe, ascending: divisors by a power of two."""
    shares = [1 << power for power in range(SMALLEST_SHARE.bit_length())]
    return [effective_batch_size // n for n in reversed(shares) if effective_batch_size % n == 0]


def seconds_or_none(
    measure: Callable[[Recipe, Splits, torch.device], float],
    recipe: Recipe,
    splits: Splits,
    device: torch.device,
) -> float | None:
    """Returns what is measured [s]; infinite where batch norm refuses, None where memory ends."""
    try:
        return measure(recipe, splits, device)
    except Exception as error:
        if is_out_of_memory(error):
            return None
        if steps.is_lone_image(error):
            return math.inf
        raise


def _seconds_per_sample(recipe: Recipe, splits: Splits, device: torch.device) -> float:
    size = min(steps.micro_batch_of(recipe), len(splits.train.labels))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        model = build_model(recipe, splits, seed=0, device=device)
        ((images, labels),) = open_dummy(recipe, splits, num_samples=size, device=device).epoch(0)

        def pass_once() -> None:
            loss = steps.sum_of_losses(
                images, labels, recipe, frac=1.0, forward=model, device=device
            )
            torch.autograd.backward(loss)

        return median_s(pass_once, device=device) / size


def median_s(call: Callable[[], object], *, device: torch.device) -> float:
    """Returns the median time of a call [s], over a few that follow one warm-up."""
    synchronize, times = synchronizer(device), list[float]()
    while len(times) < 1 + PROBE_STEPS and sum(times[1:]) < PROBE_S:
        synchronize()
        began_s = time.perf_counter()
        call()
        synchronize()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times[1:])


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

    together = recipe.augmentation.mixed_images

    def probe(batch_size: int) -> float | None:
        if batch_size % together:
            return math.inf
        seconds = seconds_or_none(_seconds_in_steps, with_batch(batch_size), splits, device)
        release_memory(device)
        return seconds

    times = probed(probe, most=num_train)
    # A size that leaves a lone image over at the epoch's end is passed over, as batch norm may
    # refuse it.
    whole = {size: seconds for size, seconds in times.items() if num_train % size != 1}
    return with_batch(smallest_near_best(whole or times) if times else together)


def probed(probe: Probe, *, most: int) -> dict[int, float]:
    """Returns the seconds per sample of the micro-batches up to `most` that were tried and fit."""
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
    """Returns the smallest micro-batch within 3 % of the least time; `times` are per sample."""
    best = min(times.values())
    return min(size for size, seconds in times.items() if seconds <= best * (1 + LEAST_GAIN))


def _seconds_in_steps(recipe: Recipe, splits: Splits, device: torch.device) -> float:
    # Unlike the micro-batches of one effective batch, those of different ones also differ in how
    # many samples share the cost of an update.
    dummy = open_dummy(recipe, splits, num_samples=steps.micro_batch_of(recipe), device=device)
    (batch,) = dummy.epoch(0)
    with probe_step(recipe, splits, device=device) as take_step:
        counts: list[int] = []
        step_s = median_s(lambda: counts.append(take_step(repeat(batch))), device=device)
    return step_s / counts[0]
