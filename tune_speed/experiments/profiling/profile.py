"""Profiles a recipe: its own pipeline, after warm-up, taken apart and set against the device."""

import math
import signal
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tune_speed.components.speedups.base import Shape
from tune_speed.core.errors import ConfigError, Problem
from tune_speed.data.cache import prepare
from tune_speed.data.loaders.base import Streaming
from tune_speed.experiments.profiling.advice import Situation, advise
from tune_speed.experiments.profiling.phases import StepsTaken, busy_s_per_sample, take_blocks
from tune_speed.experiments.profiling.pipeline import Pipeline, open_pipeline, warm_up_pipeline
from tune_speed.experiments.profiling.rates import averaging_s, measure_rates
from tune_speed.experiments.profiling.result import ProfileResult
from tune_speed.experiments.profiling.summarise import (
    found_for_auto,
    roofline,
    step_times,
    step_work,
)
from tune_speed.experiments.profiling.work import count_work
from tune_speed.experiments.rerun import cpu_threads
from tune_speed.runtime.device import (
    cpu_wait_s,
    describe_device,
    describe_devices,
    device_key,
    is_out_of_memory,
    memory_limit_gib,
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
from tune_speed.training.autotune.loader_workers import usable_cores
from tune_speed.training.loop import Interrupted
from tune_speed.training.objective import load_splits, resolve
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import accumulation_of, is_lone_image, micro_batch_of

FEWEST_STEPS, MOST_STEPS = 10, 500
ENOUGH_S = 4.0
"""Without a number of steps, so many are taken of each kind as fit into this [s]."""
# Of progress, at most.
LINES = 5


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
    share of the samples; averaging their gradients is measured apart. `steps` are taken of each
    kind, with borders and without; None: as many as fit into four seconds. `download` fetches the
    data set if it is missing; `on_progress` gets images decoded, and their number.

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
    def check_stop() -> None:
        if is_stopped():
            raise Interrupted

    set_up_process(device, cpu_threads=cpu_threads(file))
    splits = load_splits(file.workload)
    turnstile = Turnstile.open(device_key(device))
    recipe = resolve(file.recipe, splits, device=device, turnstile=turnstile)
    # What one of its devices does in a step.
    alone = recipe.model_copy(update={"devices": 1})
    reset_peak_memory(device)
    opened = open_pipeline(alone, splits, seed=file.run.seed, device=device, before_step=check_stop)
    with opened as pipeline:
        on_line(f"{file.name} on {describe_device(device)}: warming up")
        step_s = warm_up_pipeline(pipeline, alone, splits, device=device)
        taken = _take(pipeline, alone, steps, step_s, device, on_line)
        idle_s = _idle_s(pipeline, alone, taken, device)
        peak_gib = peak_memory_gib(device)
        work, model = count_work(pipeline, alone, splits, device=device), pipeline.stepper.model
    check_stop()
    release_memory(device)
    on_line("measuring matrix products and copies")
    loader = recipe.loader
    rates = measure_rates(
        dict.fromkeys((recipe.precision, "fp32", "bf16")),
        device=device,
        pin_memory=isinstance(loader, Streaming) and loader.pin_memory and device.type == "cuda",
        synchronize=synchronizer(device),
    )
    check_stop()
    num_gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    is_host, sync_s = device.type == "cpu", None
    if is_host or recipe.devices <= max(1, num_gpus):
        sync_s = averaging_s(work.gradients, size=recipe.devices, device=device)
    found = ProfileResult(
        **_described(file, recipe, device, pipeline.shape),
        peak_memory_gib=peak_gib,
        times=step_times(taken, averaging_s=sync_s, idle_s=idle_s, is_host=is_host),
        work=step_work(work, taken),
        rates=rates,
        bounds=roofline(
            work.flop,
            work.moved_bytes,
            rates,
            precision=recipe.precision,
            host_bytes=taken.copied_bytes,
            step_s=taken.step_s,
        ),
    )
    situation = Situation(
        recipe=recipe,
        found=found,
        device=device,
        num_devices=num_gpus,
        # Beyond the threads of this process.
        spare_cores=max(0, usable_cores() - torch.get_num_threads()),
        # A pixel has one byte.
        set_bytes=math.prod(splits.train.pixels.shape),
        has_convolutions=any(isinstance(part, nn.Conv2d) for part in model.modules()),
    )
    return found.model_copy(update={"advice": advise(situation)})


def _described(
    file: RecipeFile, recipe: Recipe, device: torch.device, shape: Shape
) -> dict[str, Any]:
    """Returns the fields of a profile that are known without a measurement."""
    return {
        "name": file.name,
        "workload_name": file.workload.name,
        "device": describe_devices(device, recipe.devices),
        "device_type": device.type,
        "precision": recipe.precision,
        "loader": next(iter(recipe.model_dump(mode="json")["loader"])),
        "batch_size": micro_batch_of(recipe),
        "accumulation_steps": accumulation_of(recipe),
        "samples_per_step": recipe.samples_per_step * shape.growth // recipe.devices,
        "devices": recipe.devices,
        "image_height_pixels": shape.height,
        "image_width_pixels": shape.width,
        "memory_limit_gib": memory_limit_gib(device, gpu_fraction=0.0, cpu_fraction=1.0),
        "resolved": found_for_auto(file.recipe, recipe),
    }


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
    said = {0}

    def on_block(done: int, total: int) -> None:
        if done * LINES // total not in said:
            said.add(done * LINES // total)
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
