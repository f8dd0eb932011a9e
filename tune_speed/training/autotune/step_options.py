"""Settles what a recipe leaves `auto` about how a step is computed, by taking steps both ways."""

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import torch

from tune_speed.core.config import canonical_hash
from tune_speed.core.errors import first_line
from tune_speed.core.folders import default_cache_dir
from tune_speed.data.split import Splits
from tune_speed.runtime import device as devices
from tune_speed.runtime.atomic_file import write_atomically
from tune_speed.runtime.file_lock import file_lock
from tune_speed.runtime.turnstile import Turnstile
from tune_speed.training.autotune.micro_batch import probe_step
from tune_speed.training.build import open_dummy, set_kernels, step_schedule_of
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.recorded import RECORDERS
from tune_speed.training.step.step import micro_batch_of
from tune_speed.training.throughput import step_key

# Fields that may be `auto`, settled in this order, and their values; the first one is the default,
# which holds unless another is clearly quicker.
CHOICES: dict[str, tuple[Any, ...]] = {
    "channels_last": (True, False),
    "compile": (False, True),
    "cuda_graph": (False, True),
    "optimizer_kernels": ("fused", "foreach"),
}
# A value must save more than that share of a step to be taken instead of the default.
LEAST_GAIN = 0.03
WARM_UP_STEPS = 2
# Steps both ways take turns for so long [s], or until there are `MOST_ROUNDS`.
MEASURE_S = 0.25
LEAST_ROUNDS, MOST_ROUNDS = 3, 50
WAIT_S = 60.0
"""Longest wait for another process that settles the same, and for the turn to measure [s]."""

NOTE = "note"
"""Beside the fields: why a value could not be."""
Settled = dict[str, Any]
TakeStep = Callable[[], object]


def unsettled(recipe: Recipe) -> tuple[str, ...]:
    return tuple(name for name in CHOICES if getattr(recipe, name) == "auto")


def provisional(recipe: Recipe) -> Recipe:
    """Returns the recipe with defaults for what is `auto`: runnable, for measurements of others."""
    return recipe.model_copy(update={name: CHOICES[name][0] for name in unsettled(recipe)})


def resolved(
    recipe: Recipe,
    splits: Splits,
    *,
    device: torch.device,
    turnstile: Turnstile,
    on_note: Callable[[str], None] = lambda note: None,
) -> Recipe:
    """Returns the recipe, whose micro-batch is resolved, with the quickest of what is `auto`.

    Each field is settled by itself, with those before it as they turned out, while co-tenants of
    the device pause, once a node. Of several devices that train together none is measured: they get
    the defaults. `on_note` hears which value could not be compiled or recorded, and why.

    Raises: StorageError if the cache folder cannot be written to.
    """
    if recipe.cuda_graph == "auto" and device.type not in RECORDERS:
        recipe = recipe.model_copy(update={"cuda_graph": False})
    if not unsettled(recipe):
        return recipe
    if recipe.devices > 1:
        return provisional(recipe)
    # The arithmetic is the same whatever is chosen, so the answer depends on the machine alone: it
    # is stored on the node, under the throughput key, for all trials with that kind of step.
    folder = default_cache_dir() / "step_choices"
    folder.mkdir(parents=True, exist_ok=True)
    shape, num_train = step_schedule_of(recipe, splits)[0][0], len(splits.train.labels)
    # `auto` is a value like others in the key.
    key = step_key(recipe, splits, shape, num_train=num_train, device=device)
    file = folder / f"{canonical_hash({'step': key, 'cudnn': set_kernels(recipe)})}.json"
    with file_lock(file.with_suffix(".lock"), wait_s=WAIT_S):
        settled = _read(file, recipe) or _measured(recipe, splits, device, turnstile)
        with write_atomically(file) as written:
            written.write(json.dumps(settled).encode())
    if note := settled.pop(NOTE, ""):
        on_note(note)
    return recipe.model_copy(update=settled).with_allowed_mode()


def _read(file: Path, recipe: Recipe) -> Settled | None:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    names = unsettled(recipe)
    if not isinstance(found, dict) or set(found) - {NOTE} != set(names):
        return None
    return found if all(found[name] in CHOICES[name] for name in names) else None


def _measured(
    recipe: Recipe, splits: Splits, device: torch.device, turnstile: Turnstile
) -> Settled:
    settled: Settled = {}
    notes: list[str] = []
    records = device.type in RECORDERS
    for name in unsettled(recipe):
        so_far = provisional(recipe.model_copy(update=settled).with_allowed_mode())
        # Nothing is recorded on a CPU, so that there `cuda_graph` is not worth a measurement.
        values = [
            value for value in CHOICES[name] if not (name == "cuda_graph" and value and not records)
        ]
        recipes = [so_far.model_copy(update={name: value}) for value in values]
        recipes = [each.with_allowed_mode() for each in recipes]
        recipes = [each for each in recipes if not any(each.conflicts())]

        def pass_over(unfit: Recipe, error: Exception, name: str = name) -> None:
            notes.append(f"{name} cannot be {getattr(unfit, name)}: {first_line(error)}")

        times = step_times(recipes, splits, device=device, turnstile=turnstile, pass_over=pass_over)
        settled[name] = getattr(recipes[quickest(times)], name)
    return {**settled, NOTE: "; ".join(notes)} if notes else settled


def quickest(times: list[float]) -> int:
    """Returns the index of the least time, or 0 where that saves no more than 3 % of the first."""
    least = min(range(len(times)), key=times.__getitem__)
    return least if times[least] < (1 - LEAST_GAIN) * times[0] else 0


def step_times(
    recipes: list[Recipe],
    splits: Splits,
    *,
    device: torch.device,
    turnstile: Turnstile,
    pass_over: Callable[[Recipe, Exception], None] = lambda recipe, error: None,
) -> list[float]:
    """Returns the median seconds of an optimizer step of each recipe, which take turns.

    Dummy data, after a warm-up that compiles and records: a recipe but the first for which that
    fails takes for ever, and `pass_over` gets it with its error. Where memory ends, or there is
    only one, nothing is measured: the first then has the least time.
    """
    unmeasured = [0.0, *(1.0 for _ in recipes[1:])]
    if len(recipes) < 2:
        return unmeasured
    try:
        with ExitStack() as stack:
            steps: dict[int, TakeStep] = {}
            for number, recipe in enumerate(recipes):
                try:
                    steps[number] = _warm(recipe, splits, device, stack)
                except Exception as error:
                    if (
                        number == 0
                        or devices.is_out_of_memory(error)
                        or devices.is_device_failure(error)
                    ):
                        raise
                    pass_over(recipe, error)
            with turnstile.measuring(patience_s=WAIT_S):
                rounds = list(_rounds(list(steps.values()), device))
            medians = map(statistics.median, zip(*rounds, strict=True))
            measured = dict(zip(steps, medians, strict=True))
            return [measured.get(number, math.inf) for number in range(len(recipes))]
    except Exception as error:
        if not devices.is_out_of_memory(error):
            raise
    devices.release_memory(device)
    return unmeasured


def _warm(recipe: Recipe, splits: Splits, device: torch.device, stack: ExitStack) -> TakeStep:
    take = stack.enter_context(probe_step(recipe, splits, device=device, compiles=True))
    size = min(micro_batch_of(recipe), len(splits.train.labels))
    dummy = open_dummy(recipe, splits, num_samples=size, device=device)
    step = partial(take, repeat(*dummy.epoch(0)))
    for _ in range(WARM_UP_STEPS):
        step()
    return step


def _rounds(steps: list[TakeStep], device: torch.device) -> Iterator[list[float]]:
    synchronize = devices.synchronizer(device)
    began_s = time.perf_counter()
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and time.perf_counter() - began_s > MEASURE_S:
            return
        times = [0.0] * len(steps)
        # Every other round backwards, so that a drift of the machine's speed favours none.
        for index in list(range(len(steps)))[:: -1 if number % 2 else 1]:
            synchronize()
            step_began_s = time.perf_counter()
            steps[index]()
            synchronize()
            times[index] = time.perf_counter() - step_began_s
        yield times
