"""Profiles a recipe: its own pipeline, after warm-up, taken apart and set against the device.

The roofline says how quick a step could be at best. With F operations and B bytes of a step (see
`work`), the device's rates R [FLOP/s] and W [byte/s] (see `rates`), and H bytes from the host at V
[byte/s]:

    t_compute = F / R      t_memory = B / W      t_host = H / V      t ≥ max(t_compute, t_memory)

The arithmetic intensity is I = F / B [FLOP/byte]; the roof over it, min(R, I · W), is reached by
a step that takes exactly max(t_compute, t_memory). Where I < R / W, memory binds.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009. We differ in measuring both rates.
"""

import math
import signal
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tune_speed.components.speedups.base import Shape
from tune_speed.core.errors import ConfigError
from tune_speed.data.cache import prepare
from tune_speed.data.loaders.configs import Streaming
from tune_speed.experiments.profiling import phases, result
from tune_speed.experiments.profiling import pipeline as pipelines
from tune_speed.experiments.profiling.advice import Situation, advise
from tune_speed.experiments.profiling.rates import averaging_s, measure_rates
from tune_speed.experiments.rerun import cpu_threads
from tune_speed.runtime import device as devices
from tune_speed.runtime.process import cpu_wait_s, stop_signals
from tune_speed.runtime.turnstile import Turnstile
from tune_speed.study.file import RecipeFile
from tune_speed.training.autotune.loader_workers import usable_cores
from tune_speed.training.autotune.step_options import CHOICES
from tune_speed.training.loop import Interrupted
from tune_speed.training.objective import load_splits, resolve
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import accumulation_of, is_lone_image, micro_batch_of

FEWEST_STEPS, MOST_STEPS = 10, 500
ENOUGH_S = 4.0
"""Without a number of steps, so many are taken of each kind as fit into this [s]."""
# Of progress, at most.
LINES = 5
MIB, MS = 1024**2, 1e3
COMPUTING: tuple[phases.Phase, ...] = ("forward", "backward", "forward_backward", "optimizer")


def profile_recipe(
    file: RecipeFile,
    *,
    steps: int | None,
    download: bool,
    on_progress: Callable[[int, int], None],
    on_line: Callable[[str], None],
) -> result.ProfileResult | None:
    """Returns where the time of the recipe's steps goes, and what to try; None after Ctrl-C.

    Of several devices one is profiled, with its share of the samples. `steps` are taken of each
    kind, with borders and without; None: as many as fit into four seconds.

    Raises: ConfigError, also where a step does not fit into memory; DataError.
    """
    device = devices.resolve_device(file.run.device)
    try:
        prepare(file.workload.dataset, download=download, on_progress=on_progress)
        with stop_signals(signal.SIGINT) as is_stopped:
            return _profile(file, device, steps, is_stopped, on_line)
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
        step_s = pipelines.warm_up_pipeline(pipeline, alone, device=device)
        taken = _take(pipeline, alone, steps, step_s, device, on_line)
        idle_s = _idle_s(pipeline, alone, taken, device)
        peak_gib = devices.peak_memory_gib(device)
        work, model = (
            pipelines.count_work(pipeline, alone, splits, device=device),
            pipeline.stepper.model,
        )
    check_stop()
    devices.release_memory(device)
    on_line("measuring matrix products and copies")
    loader = recipe.loader
    rates = measure_rates(
        dict.fromkeys((recipe.precision, "fp32", "bf16")),
        device=device,
        pin_memory=isinstance(loader, Streaming) and loader.pin_memory and device.type == "cuda",
        synchronize=devices.synchronizer(device),
    )
    check_stop()
    num_gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    is_host, sync_s = device.type == "cpu", None
    if is_host or recipe.devices <= max(1, num_gpus):
        sync_s = averaging_s(work.gradients, size=recipe.devices, device=device)
    found = result.ProfileResult(
        **_described(file, recipe, device, pipeline.shape),
        peak_memory_gib=peak_gib,
        times=_step_times(taken, averaging_s=sync_s, idle_s=idle_s, is_host=is_host),
        work=_step_work(work, taken),
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
    has_convolutions = any(isinstance(part, nn.Conv2d) for part in model.modules())
    # A pixel has one byte; spare cores are those beyond the threads of this process.
    set_bytes = math.prod(splits.train.pixels.shape)
    spare_cores = max(0, usable_cores() - torch.get_num_threads())
    at = Situation(recipe, found, device, num_gpus, spare_cores, set_bytes, has_convolutions)
    return found.model_copy(update={"advice": advise(at)})


def _described(
    file: RecipeFile, recipe: Recipe, device: torch.device, shape: Shape
) -> dict[str, Any]:
    return {
        "name": file.name,
        "workload_name": file.workload.label,
        "device": str(devices.device_of(device, recipe.devices)),
        "device_type": device.type,
        "precision": recipe.precision,
        "loader": next(iter(recipe.model_dump(mode="json")["loader"])),
        "batch_size": micro_batch_of(recipe),
        "accumulation_steps": accumulation_of(recipe),
        "samples_per_step": recipe.samples_per_step * shape.growth // recipe.devices,
        "devices": recipe.devices,
        "image_height_pixels": shape.height,
        "image_width_pixels": shape.width,
        "memory_limit_gib": devices.memory_limit_gib(device, gpu_fraction=0.0, cpu_fraction=1.0),
        "resolved": _found_for_auto(file.recipe, recipe),
    }


def _take(
    pipeline: pipelines.Pipeline,
    recipe: Recipe,
    steps: int | None,
    step_s: float,
    device: torch.device,
    on_line: Callable[[str], None],
) -> phases.StepsTaken:
    enough = min(MOST_STEPS, max(FEWEST_STEPS, int(ENOUGH_S / step_s)))
    said = {0}

    def on_block(done: int, total: int) -> None:
        if done * LINES // total not in said:
            said.add(done * LINES // total)
            on_line(f"{done} of {total} steps, half of them with borders between the phases")

    return phases.take_blocks(
        pipeline.take,
        pipeline.timer,
        num_steps=steps or enough,
        step_s=step_s,
        samples_per_step=recipe.samples_per_step * pipeline.shape.growth,
        synchronize=devices.synchronizer(device),
        waited=lambda: pipeline.waits.waited_s,
        core_waited=lambda: cpu_wait_s() or 0.0,
        on_block=on_block,
    )


def _idle_s(
    pipeline: pipelines.Pipeline, recipe: Recipe, taken: phases.StepsTaken, device: torch.device
) -> float | None:
    """Returns how long the device does nothing in a step as it runs [s]; None if unknown."""
    if device.type == "cpu":
        known = cpu_wait_s() is not None
        return taken.core_wait_s / torch.get_num_threads() if known else None
    busy = phases.busy_s_per_sample(pipeline.take, device=device)
    samples = recipe.samples_per_step * pipeline.shape.growth
    return None if busy is None else max(0.0, taken.step_s - busy * samples)


def _found_for_auto(given: Recipe, ran: Recipe) -> dict[str, str]:
    fields = ("batch_size", "accumulation_steps", *CHOICES)
    found = {name: str(getattr(ran, name)) for name in fields if getattr(given, name) == "auto"}
    # By default it is `auto`, and on a CPU nothing is recorded.
    if not ran.cuda_graph:
        found.pop("cuda_graph", None)
    if given.effective_batch_size is not None:
        found["batch_size"] = str(ran.batch_size)
    ours, loader = given.loader, ran.loader
    if isinstance(ours, Streaming) and ours.workers == "auto" and isinstance(loader, Streaming):
        found["loader.workers"] = str(loader.workers)
    return found


def _step_times(
    taken: phases.StepsTaken, *, averaging_s: float | None, idle_s: float | None, is_host: bool
) -> result.StepTimes:
    sum_s = sum(taken.total_s.values())
    computing_s = sum(taken.total_s[phase] for phase in COMPUTING)
    launch_frac = sum(taken.launched_s[phase] for phase in COMPUTING) / computing_s
    return result.StepTimes(
        step_ms=MS * taken.step_s,
        step_low_ms=MS * taken.low_s,
        step_high_ms=MS * taken.high_s,
        num_steps=taken.num_steps,
        unprofiled_wait_ms=MS * taken.waited_s,
        sync_ms=_scaled(averaging_s, MS),
        profiled_step_ms=MS * sum_s,
        overlap_ms=MS * (sum_s - taken.step_s),
        idle_ms=_scaled(idle_s, MS),
        launch_frac=None if is_host else launch_frac,
        **{f"{phase}_ms": MS * seconds for phase, seconds in taken.total_s.items()},
    )


def _step_work(work: pipelines.Work, taken: phases.StepsTaken) -> result.StepWork:
    return result.StepWork(
        gflop=_scaled(work.flop, 1e-9),
        parameters_mib=work.parameters / MIB,
        optimizer_state_mib=work.optimizer_state / MIB,
        activations_mib=work.saved / MIB,
        moved_mib=work.moved_bytes / MIB,
        copied_mib=taken.copied_bytes / MIB,
    )


def roofline(
    flop: float | None,
    moved_bytes: float,
    rates: result.DeviceRates,
    *,
    precision: str,
    host_bytes: float,
    step_s: float,
) -> result.Bounds | None:
    """In this module's symbols F is `flop`, B `moved_bytes`, H `host_bytes`; None without F."""
    if flop is None:
        return None
    flop_per_s = 1e12 * rates.matrix_tflop_per_s[precision]
    compute_s, memory_s = flop / flop_per_s, moved_bytes / (1e9 * rates.memory_gb_per_s)
    host_rate = rates.host_to_device_gb_per_s
    # Copies from the host can be hidden behind computing, so theirs is a bound by itself.
    return result.Bounds(
        compute_bound_ms=1e3 * compute_s,
        memory_bound_ms=1e3 * memory_s,
        host_bound_ms=1e3 * host_bytes / (1e9 * host_rate) if host_rate else None,
        binding="compute" if compute_s >= memory_s else "memory",
        intensity_flop_per_byte=flop / moved_bytes,
        achieved_tflop_per_s=flop / step_s / 1e12,
        peak_frac=flop / step_s / flop_per_s,
        roof_frac=max(compute_s, memory_s) / step_s,
    )


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
