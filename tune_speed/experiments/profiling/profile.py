"""Profiles a recipe: its own pipeline, after warm-up, taken apart and set against the device.

The roofline says how quick a phase, or a step, could be at best. With its F operations and B bytes
(see `pipeline`), and the device's rates R [FLOP/s] and W [byte/s] (see `rates`):

    t_compute = F / R      t_memory = B / W      t ≥ max(t_compute, t_memory)

Where the arithmetic intensity I = F / B [FLOP/byte] is below R / W, memory binds.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009. We differ in measuring both rates.
"""

import math
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from tune_speed.core.config import flatten
from tune_speed.core.errors import ConfigError
from tune_speed.data.cache import prepare
from tune_speed.experiments.profiling import pipeline as pipelines
from tune_speed.experiments.profiling import result
from tune_speed.experiments.profiling.advice import Situation, advise
from tune_speed.experiments.profiling.phases import Recorded, record
from tune_speed.experiments.profiling.rates import measure_rates
from tune_speed.experiments.rerun import cpu_threads
from tune_speed.runtime import device as devices
from tune_speed.runtime.process import stop_signals
from tune_speed.runtime.step_timer import BLOCK_S, Meters, Steps, Timed, time_steps, warm_up
from tune_speed.runtime.turnstile import Turnstile
from tune_speed.study.file import RecipeFile
from tune_speed.training.autotune.loader_workers import usable_cores
from tune_speed.training.loop import Interrupted
from tune_speed.training.objective import load_splits, resolve
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import accumulation_of, is_lone_image, micro_batch_of
from tune_speed.training.warm_up import dummy_groups

FEWEST_STEPS, MOST_STEPS = 2, 50
RECORD_S = 1.0
"""Without a number of steps, so many are recorded as fit into this [s]."""
# Steps are taken for so long [s] before any is timed, two at least; and timed for so long at most.
WARM_UP_S, TIMED_S = 1.0, 4.0
MIB, MS = 1024**2, 1e3


def profile_recipe(
    file: RecipeFile,
    *,
    steps: int | None,
    trace: Path | None = None,
    download: bool,
    on_progress: Callable[[int, int], None],
    on_line: Callable[[str], None],
) -> result.ProfileResult | None:
    """Returns where the time of the recipe's steps goes, and what to try; None after Ctrl-C.

    Of several devices one is profiled, with its share of the samples. `steps` are recorded; None:
    as many as fit into a second. `trace` is a file for a Chrome trace of them.

    Raises: ConfigError, also where a step does not fit into memory; DataError; StorageError if the
        trace cannot be written.
    """
    device = devices.resolve_device(file.run.device)
    try:
        prepare(file.workload.dataset, download=download, on_progress=on_progress)
        with stop_signals(signal.SIGINT) as is_stopped:
            return _profile(file, device, steps, trace, is_stopped, on_line)
    except (KeyboardInterrupt, Interrupted):
        return None
    except Exception as error:
        must, hint = "must fit in memory", "Try a smaller one, with accumulation_steps."
        if is_lone_image(error):
            must, hint = "must leave no micro-batch with a single image", "Try another one."
        elif not devices.is_out_of_memory(error):
            raise
        given = str(file.recipe.batch_size)
        raise ConfigError.of("recipe.batch_size", must, given=given, hint=hint) from error


def _profile(
    file: RecipeFile,
    device: torch.device,
    steps: int | None,
    trace: Path | None,
    is_stopped: Callable[[], bool],
    on_line: Callable[[str], None],
) -> result.ProfileResult:
    def check_stop() -> None:
        if is_stopped():
            raise Interrupted

    devices.set_up_process(device, cpu_threads=cpu_threads(file))
    splits = load_splits(file.workload)
    turnstile = Turnstile.open(devices.device_key(device))
    recipe = resolve(file.recipe, splits, device=device, turnstile=turnstile)
    # What one of its devices does in a step.
    alone = recipe.model_copy(update={"devices": 1})
    devices.reset_peak_memory(device)
    opened = pipelines.open_pipeline(
        alone, splits, seed=file.run.seed, device=device, before_step=check_stop
    )
    with opened as pipeline:
        on_line(f"{file.name} on {devices.describe_device(device)}: warming up")
        timed = _time(pipeline, device)
        num_steps = steps or min(MOST_STEPS, max(FEWEST_STEPS, int(RECORD_S / timed.step_s)))
        on_line(f"recording {num_steps} steps")
        recorded = record(pipeline.take, num_steps=num_steps, device=device, trace=trace)
        peak_gib = devices.peak_memory_gib(device)
        channels = splits.train.pixels.shape[3]
        work = pipelines.count_flop(pipeline, channels=channels), pipelines.moved_bytes(pipeline)
    check_stop()
    devices.release_memory(device)
    on_line("measuring matrix products and copies")
    names = dict.fromkeys((recipe.precision, "fp32", "bf16"))
    rates = measure_rates(names, device=device)
    check_stop()
    times = _step_times(timed, recorded, num_steps, pipeline.samples_per_step)
    found = result.ProfileResult(
        **_described(file, recipe, device, pipeline),
        peak_memory_gib=peak_gib,
        times=times,
        rates=rates,
        **bounds_of(*work, times, rates, recipe.precision),
    )
    num_gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    # A pixel has one byte; spare cores are those beyond the threads of this process.
    set_bytes = math.prod(splits.train.pixels.shape)
    spare_cores = max(0, usable_cores() - torch.get_num_threads())
    at = Situation(recipe, found, device, num_gpus, spare_cores, set_bytes)
    return found.model_copy(update={"advice": advise(at)})


def _time(pipeline: pipelines.Pipeline, device: torch.device) -> Timed:
    recipe, loader = pipeline.stepper.recipe, pipeline.loader
    for group in dummy_groups(recipe, loader, pipeline.shape):
        pipeline.take_group(group)
    synchronize, now = devices.synchronizer(device), time.perf_counter
    step_s = warm_up(pipeline.take, limit_s=WARM_UP_S, synchronize=synchronize, now=now)
    steps = Steps(
        pipeline.take,
        samples_per_step=pipeline.samples_per_step,
        num_train=loader.num_samples,
        block_s=BLOCK_S[device.type],
        period=recipe.speedups.period,
        is_even=not recipe.speedups.leaves_gradients_out,
    )
    return time_steps(steps, Meters(synchronize, now), step_s=step_s, limit_s=TIMED_S)


def _described(
    file: RecipeFile, recipe: Recipe, device: torch.device, pipeline: pipelines.Pipeline
) -> dict[str, Any]:
    given, ran = (flatten(each.model_dump(mode="json")) for each in (file.recipe, recipe))
    return {
        "name": file.name,
        "workload_name": file.workload.label,
        "device": str(devices.device_of(device, recipe.devices)),
        "device_type": device.type,
        "precision": recipe.precision,
        "loader": next(iter(recipe.model_dump(mode="json")["loader"])),
        "batch_size": micro_batch_of(recipe),
        "accumulation_steps": accumulation_of(recipe),
        "samples_per_step": pipeline.samples_per_step,
        "devices": recipe.devices,
        "image_height_pixels": pipeline.shape.height,
        "image_width_pixels": pipeline.shape.width,
        "memory_limit_gib": devices.memory_limit_gib(device, gpu_fraction=0.0, cpu_fraction=1.0),
        "resolved": {name: str(ran[name]) for name, value in given.items() if value == "auto"},
    }


def _step_times(
    timed: Timed, recorded: Recorded, num_steps: int, samples_per_step: int
) -> result.StepTimes:
    # By samples, as a step at an epoch's end may have fewer.
    a_step = samples_per_step / recorded.num_samples
    busy_s = a_step * recorded.busy_s
    return result.StepTimes(
        step_ms=MS * timed.step_s,
        step_low_ms=MS * timed.low_s,
        step_high_ms=MS * timed.high_s,
        num_steps=num_steps,
        profiled_step_ms=MS * a_step * sum(recorded.total_s.values()),
        idle_ms=MS * max(0.0, timed.step_s - busy_s) if recorded.is_device_seen else None,
        num_launches=a_step * recorded.num_launches,
        **{f"{phase}_ms": MS * a_step * s for phase, s in recorded.total_s.items()},
    )


def bounds_of(
    flop: dict[result.Phase, float] | None,
    moved: dict[result.Phase, int],
    times: result.StepTimes,
    rates: result.DeviceRates,
    precision: str,
) -> dict[str, Any]:
    """Returns the bounds of the step and of its phases; without operations those of some."""

    def bounds(phase: str, of: Collection[result.Phase]) -> result.Bounds | None:
        flops, time_s = (
            sum((flop or {}).get(p, 0.0) for p in of),
            getattr(times, f"{phase}_ms") / MS,
        )
        is_known = time_s > 0 and (flop is not None or not {"forward", "backward"} & {*of})
        matrix, memory = rates.matrix_tflop_per_s[precision], rates.memory_gb_per_s
        num_bytes = sum(moved[p] for p in of)
        return roofline(flops, num_bytes, matrix, memory, time_s=time_s) if is_known else None

    phases: dict[result.Phase, Collection[result.Phase]] = {phase: (phase,) for phase in moved}
    if times.forward_backward_ms:
        phases = {"forward_backward": moved}
    found = {phase: bounds(phase, of) for phase, of in phases.items()}
    known = {phase: each for phase, each in found.items() if each is not None}
    return {"bounds": bounds("step", moved), "phase_bounds": known}


def roofline(
    flop: float, num_bytes: float, tflop_per_s: float, gb_per_s: float, *, time_s: float
) -> result.Bounds:
    """In this module's symbols F is `flop`, B `num_bytes`, R and W follow."""
    compute_s, memory_s = flop / (1e12 * tflop_per_s), num_bytes / (1e9 * gb_per_s)
    return result.Bounds(
        gflop=flop / 1e9,
        moved_mib=num_bytes / MIB,
        compute_bound_ms=MS * compute_s,
        memory_bound_ms=MS * memory_s,
        binding="compute" if compute_s >= memory_s else "memory",
        achieved_tflop_per_s=flop / time_s / 1e12,
        peak_frac=compute_s / time_s,
        roof_frac=max(compute_s, memory_s) / time_s,
    )
