"""Which loader, for `loader: auto`; and how many workers keep the device fed, for `workers: auto`.

Settings are tried from small to large with real steps, the device synchronised after each: then the
time in `next()` is how long it is idle. The first that leaves it idle for less than 5 % is taken;
where doubling the workers gains less than 3 %, the smallest within 3 % of the best throughput.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count
from typing import NamedTuple

import torch

from tune_speed.core.words import Note
from tune_speed.data.loaders.configs import Automatic, Streaming
from tune_speed.data.loaders.worker_pool import most_slots
from tune_speed.data.split import Splits
from tune_speed.runtime.clock import Waits
from tune_speed.runtime.device import release_memory, synchronizer
from tune_speed.training.autotune.micro_batch import Batch, TakeStep, probe_step
from tune_speed.training.build import open_loader
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import micro_batch_of

MOST_WAIT = 0.05
"""Share of the time spent waiting that is still called fed."""
LEAST_GAIN = 0.03
"""Gain in throughput by a doubling of the workers that is worth trying more for."""
PREFETCH_FACTORS = (2, 4)
PROBE_STEPS = 20
# Warm-up and measurement each end after so many steps, or so many seconds.
PROBE_S = 2.0


class Setting(NamedTuple):
    """What is tuned, from small to large."""

    workers: int
    prefetch_factor: int


class Served(NamedTuple):
    """How a setting did."""

    setting: Setting
    wait_frac: float
    """Share of the time in which a step waited for its batches."""
    samples_per_s: float


class Choice(NamedTuple):
    """What is best, and whether it is good enough."""

    setting: Setting
    is_starved: bool
    """Whether steps still wait for 5 % of the time or more."""


def with_loader(
    recipe: Recipe, splits: Splits, *, device: torch.device, on_note: Callable[[Note], None]
) -> Recipe:
    """Returns `recipe` with a loader for `loader: auto`, before anything is keyed by the recipe."""
    if not isinstance(recipe.loader, Automatic):
        return recipe
    judging = max(splits.validation, splits.test, key=lambda part: len(part.labels))
    loader, note = recipe.loader.chosen([splits.train, judging], device)
    on_note(note)
    if isinstance(loader, Streaming):
        loader = loader.model_copy(update={"workers": "auto"})
    return recipe.model_copy(update={"loader": loader})


def resolved(recipe: Recipe, splits: Splits, *, device: torch.device) -> Recipe:
    """Returns `recipe` with numbers for `workers: auto`; its micro-batch must be one by now."""
    if not isinstance(recipe.loader, Streaming) or recipe.loader.workers != "auto":
        return recipe
    return _with(recipe, tuned(recipe, splits, device=device).setting)


def tuned(recipe: Recipe, splits: Splits, *, device: torch.device) -> Choice:
    """Returns the setting of the streaming loader for `recipe`, by measurement."""
    # Any change that alters the time of a step alters the answer, so it is measured again for each
    # trial, before the training clock starts; `fed_ratio` in its record shows whether it held.
    with probe_step(recipe, splits, device=device) as take_step:

        def measure(setting: Setting) -> Served:
            changed = _with(recipe, setting)
            served = _served(changed, splits, take_step, setting, device=device)
            release_memory(device)
            return served

        # `set_up_process` gives torch as many threads as the trial was granted.
        most = most_slots((micro_batch_of(recipe), *splits.train.pixels.shape[1:]))
        ascending = settings(min(usable_cores(), torch.get_num_threads()))
        fit = (each for each in ascending if each.workers * each.prefetch_factor <= most)
        return choose(fit, measure)


def usable_cores() -> int:
    """Returns the cores that this process may use, fewer than all where it is bound to some."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def settings(cpus: int) -> list[Setting]:
    """Returns the settings to try, ascending: 0, 1, 2, 4 … `cpus` workers."""
    doubling = [1 << power for power in range(cpus.bit_length())]
    workers = sorted({*doubling, cpus})
    return [Setting(0, PREFETCH_FACTORS[0])] + [
        Setting(number, factor) for number in workers for factor in PREFETCH_FACTORS
    ]


def choose(candidates: Iterable[Setting], measure: Callable[[Setting], Served]) -> Choice:
    """Returns the best of `candidates`, which ascend; measures no more of them than needed."""
    measured: list[Served] = []
    for setting in candidates:
        measured.append(measure(setting))
        if measured[-1].wait_frac < MOST_WAIT:
            return Choice(setting, is_starved=False)
        if has_levelled(measured):
            break
    # Often no workers on a CPU, where they take their time from the training.
    best = max(served.samples_per_s for served in measured)
    near = (served for served in measured if served.samples_per_s * (1 + LEAST_GAIN) >= best)
    return Choice(next(near).setting, is_starved=True)


def has_levelled(measured: Sequence[Served]) -> bool:
    """Returns whether the last doubling of the workers gained less than 3 % of throughput."""
    best: dict[int, float] = {}
    for served in measured:
        workers = served.setting.workers
        best[workers] = max(best.get(workers, 0.0), served.samples_per_s)
    # From none to one is no doubling: the work moves elsewhere, and may not get quicker by it.
    if len(best) < 3:
        return False
    *_, before, last = best.values()
    return last < before * (1 + LEAST_GAIN)


def served(
    batches: Iterator[Batch],
    take_step: TakeStep,
    setting: Setting,
    *,
    synchronize: Callable[[], None],
    now: Callable[[], float] = time.perf_counter,
) -> Served:
    """Returns how endless batches arrive while steps are taken.

    First come steps that use up what was prefetched before, and are not counted: at least two
    batches for each place in the workers' stock.
    """
    waits = Waits(now=now)
    fed = waits.over(batches)
    stock = setting.workers * setting.prefetch_factor

    def take(num_steps: int) -> int:
        began, num_samples = now(), 0
        for _ in range(num_steps):
            num_samples += take_step(fed)
            synchronize()
            if now() - began > PROBE_S:
                break
        return num_samples

    take(2 * stock + 2)
    waited_before, began = waits.waited_s, now()
    num_samples = take(max(PROBE_STEPS, 2 * stock))
    wall_s = now() - began
    return Served(setting, (waits.waited_s - waited_before) / wall_s, num_samples / wall_s)


def _served(
    recipe: Recipe, splits: Splits, take_step: TakeStep, setting: Setting, *, device: torch.device
) -> Served:
    loader = open_loader(recipe, splits.train, splits, seed=0, device=device)
    try:
        batches = chain.from_iterable(loader.epoch(epoch) for epoch in count())
        return served(batches, take_step, setting, synchronize=synchronizer(device))
    finally:
        loader.close()


def _with(recipe: Recipe, setting: Setting) -> Recipe:
    loader = recipe.loader.model_copy(update=setting._asdict())
    return recipe.model_copy(update={"loader": loader})
