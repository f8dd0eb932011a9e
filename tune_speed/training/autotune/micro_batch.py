"""The micro-batch that a recipe runs with: smaller where memory ran out, or the fastest."""

import math
import statistics
import time
from collections.abc import Callable

import torch

from tune_speed.data.split import Splits
from tune_speed.runtime.device import is_out_of_memory, release_memory, synchronizer
from tune_speed.training.build import build_model, open_dummy
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.gradient import sum_of_losses
from tune_speed.training.step.step import is_lone_image, micro_batch_of

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

    The micro-batch is halved and the accumulation doubled; where the micro-batch is odd, the
    largest divisor of a device's share of the effective batch size below its half is taken. None
    below 1, and where no file could say such a recipe.
    """
    share = recipe.samples_per_step // recipe.devices
    for batch_size in range(micro_batch_of(recipe) // 2, 0, -1):
        if share % batch_size == 0:
            smaller = recipe.with_micro_batch(batch_size)
            return None if any(smaller.conflicts()) else smaller
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
        if is_lone_image(error):
            return math.inf
        raise


def _seconds_per_sample(recipe: Recipe, splits: Splits, device: torch.device) -> float:
    """Returns the median seconds per sample of forward and backward, after one warm-up."""
    size = min(micro_batch_of(recipe), len(splits.train.labels))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        model = build_model(recipe, splits, seed=0, device=device)
        ((images, labels),) = open_dummy(recipe, splits, num_samples=size, device=device).epoch(0)

        def pass_once() -> None:
            loss = sum_of_losses(images, labels, recipe, frac=1.0, forward=model, device=device)
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
