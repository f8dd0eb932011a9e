"""Profiles a recipe: its own pipeline, after warm-up, taken apart and set against the device."""

import math
import os
import signal
from collections.abc import Callable

import torch
from torch import nn

from tune_speed.core.errors import ConfigError, Problem
from tune_speed.data.cache import prepare
from tune_speed.data.loaders.base import Streaming
from tune_speed.experiments.profiling.advice import Situation, advise
from tune_speed.experiments.profiling.averaging import averaging_s
from tune_speed.experiments.profiling.blocks import StepsTaken, busy_s_per_sample, take_blocks
from tune_speed.experiments.profiling.pipeline import Pipeline, open_pipeline, warm_up_pipeline
from tune_speed.experiments.profiling.rates import Rates, measure_rates
from tune_speed.experiments.profiling.result import ProfileResult
from tune_speed.experiments.profiling.summarise import Measured, summarise
from tune_speed.experiments.profiling.work import Work, count_work
from tune_speed.experiments.rerun import cpu_threads
from tune_speed.runtime.device import (
    cpu_wait_s,
    describe_device,
    device_key,
    is_out_of_memory,
    peak_memory_gib,
    release_memory,
    reset_peak_memory,
    resolve_device,
    set_up_process,
    synchronizer,
)
from tune_speed.runtime.process import stop_signals
from tune_speed.runtime.turnstile import Turnstile
from tune_speed.study.file import RecipeFile
from tune_speed.training.loop import Interrupted
from tune_speed.training.objective import load_splits, resolve
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import is_lone_image

FEWEST_STEPS, MOST_STEPS = 10, 500
ENOUGH_S = 4.0
"""Without a number of steps, so many are taken of each kind as fit into this [s]."""
LINES = 5
"""That say how many steps are done."""


def profile_recipe(
    file: RecipeFile,
    *,
    steps: int | None,
    download: bool,
    on_progress: Callable[[int, int], None],
    on_line: Callable[[str], None],
) -> ProfileResult | None:
    """Returns where the time of the recipe's steps goes, and what to try; None after Ctrl-C.

    Steps have the shape that the run begins with. Of several devices one is profiled, with its
    share of the samples; averaging their gradients is measured apart.

    Args:
        file: The recipe, its workload, and where to run.
        steps: Of each kind, with borders and without; None: as many as fit into four seconds.
        download: Fetch the data set if it is missing.
        on_progress: Gets images decoded, and their number.
        on_line: Gets lines for people.

    Raises: ConfigError, also where a step does not fit into memory; DataError.
    """
    device = resolve_device(file.run.device)
    try:
        prepare(file.workload.dataset, download=download, on_progress=on_progress)
        with stop_signals(signal.SIGINT) as is_stopped:
            return _profile(file, device, steps, is_stopped, on_line)
    except (KeyboardInterrupt, Interrupted):
        return None
    except Exception as error:
        if not (is_out_of_memory(error) or is_lone_image(error)):
            raise
        raise _too_large_or_small(file, error) from error


def _profile(
    file: RecipeFile,
    device: torch.device,
    steps: int | None,
    is_stopped: Callable[[], bool],
    on_line: Callable[[str], None],
) -> ProfileResult:
    def heed() -> None:
        if is_stopped():
            raise Interrupted

    set_up_process(device, cpu_threads=cpu_threads(file))
    splits = load_splits(file.workload)
    turnstile = Turnstile.open(device_key(device))
    recipe = resolve(file.recipe, splits, device=device, turnstile=turnstile)
    alone = recipe.model_copy(update={"devices": 1})  # What one of its devices does in a step.
    reset_peak_memory(device)
    with open_pipeline(
        alone, splits, seed=file.run.seed, device=device, before_step=heed
    ) as pipeline:
        on_line(f"{file.name} on {describe_device(device)}: warming up")
        step_s = warm_up_pipeline(pipeline, alone, splits, device=device)
        taken = _take(pipeline, alone, steps, step_s, device, on_line)
        idle = _idle_s(pipeline, alone, taken, device)
        peak_gib = peak_memory_gib(device)
        work, model = count_work(pipeline, alone, splits, device=device), pipeline.stepper.model
    heed()
    release_memory(device)
    on_line("measuring matrix products and copies")
    rates = _rates(recipe, device)
    heed()
    averaging = _averaging(recipe, work, device)
    measured = Measured(
        asked=file.recipe,
        recipe=recipe,
        device=device,
        shape=pipeline.shape,
        taken=taken,
        work=work,
        rates=rates,
        averaging_s=averaging,
        idle_s=idle,
        peak_memory_gib=peak_gib,
    )
    found = summarise(measured, name=file.name, workload_name=file.workload.name)
    situation = Situation(
        recipe=recipe,
        found=found,
        device=device,
        num_devices=_num_gpus(device),
        spare_cores=_spare_cores(),
        set_bytes=math.prod(splits.train.pixels.shape),  # One byte each.
        has_convolutions=any(isinstance(part, nn.Conv2d) for part in model.modules()),
    )
    return found.model_copy(update={"advice": advise(situation)})


def _too_large_or_small(file: RecipeFile, error: Exception) -> ConfigError:
    is_too_small = is_lone_image(error)
    must = "must leave no micro-batch with a single image" if is_too_small else "must fit in memory"
    hint = "Try another one." if is_too_small else "Try a smaller one, with accumulation_steps."
    given = str(file.recipe.batch_size)
    problem = Problem(path="recipe.batch_size", must=must, given=given, hint=hint)
    return ConfigError(problems=(problem,))


def _take(
    pipeline: Pipeline,
    recipe: Recipe,
    steps: int | None,
    step_s: float,
    device: torch.device,
    on_line: Callable[[str], None],
) -> StepsTaken:
    enough = min(MOST_STEPS, max(FEWEST_STEPS, int(ENOUGH_S / step_s)))
    said = 0

    def on_block(done: int, total: int) -> None:
        nonlocal said
        if done * LINES // total > said:
            said = done * LINES // total
            on_line(f"{done} of {total} steps, half of them with borders between the phases")

    return take_blocks(
        pipeline.take,
        pipeline.timer,
        num_steps=steps or enough,
        step_s=step_s,
        samples_per_step=recipe.samples_per_step * pipeline.shape.growth,
        synchronize=synchronizer(device),
        waited=lambda: pipeline.waits.waited_s,
        core_waited=lambda: cpu_wait_s() or 0.0,
        on_block=on_block,
    )


def _idle_s(
    pipeline: Pipeline, recipe: Recipe, taken: StepsTaken, device: torch.device
) -> float | None:
    """Returns how long the device does nothing in a step as it runs [s]; None if unknown."""
    if device.type == "cpu":
        known = cpu_wait_s() is not None
        return taken.core_wait_s / torch.get_num_threads() if known else None
    busy = busy_s_per_sample(pipeline.take, device=device)
    samples = recipe.samples_per_step * pipeline.shape.growth
    return None if busy is None else max(0.0, taken.step_s - busy * samples)


def _rates(recipe: Recipe, device: torch.device) -> Rates:
    loader = recipe.loader
    return measure_rates(
        tuple(dict.fromkeys((recipe.precision, "fp32", "bf16"))),
        device=device,
        pin_memory=isinstance(loader, Streaming) and loader.pin_memory and device.type == "cuda",
        synchronize=synchronizer(device),
    )


def _averaging(recipe: Recipe, work: Work, device: torch.device) -> float | None:
    """Returns the seconds of averaging gradients over the recipe's devices; 0 with one."""
    if recipe.devices == 1:
        return 0.0
    if device.type == "cuda" and recipe.devices > _num_gpus(device):
        return None
    return averaging_s(work.parts.gradients, size=recipe.devices, device=device)


def _num_gpus(device: torch.device) -> int:
    return torch.cuda.device_count() if device.type == "cuda" else 0


def _spare_cores() -> int:
    """Returns the cores that this process may use beyond its threads."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(0, cores - torch.get_num_threads())
