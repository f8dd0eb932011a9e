"""From what was measured, in seconds and bytes, to the figures that are shown."""

from typing import NamedTuple

import torch

from tune_speed.components.speedups.base import Shape
from tune_speed.data.loaders.base import Streaming
from tune_speed.experiments.profiling.blocks import StepsTaken
from tune_speed.experiments.profiling.phases import Phase
from tune_speed.experiments.profiling.rates import Rates
from tune_speed.experiments.profiling.result import (
    Bounds,
    DeviceRates,
    ProfileResult,
    StepTimes,
    StepWork,
)
from tune_speed.experiments.profiling.roofline import roofline
from tune_speed.experiments.profiling.work import Work
from tune_speed.runtime.device import describe_devices, memory_limit_gib
from tune_speed.training.autotune.step_options import CHOICES
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import accumulation_of, micro_batch_of

MIB, MS = 1024**2, 1e3


class Measured(NamedTuple):
    """What is known of a recipe's steps on a device."""

    asked: Recipe
    """As it was given."""
    recipe: Recipe
    """As it ran: with numbers for what was `auto`."""
    device: torch.device
    shape: Shape
    """Of the steps."""
    taken: StepsTaken
    work: Work
    rates: Rates
    averaging_s: float | None
    """Of gradients over devices, a step; 0 with one device, None if it could not be measured."""
    idle_s: float | None
    """Of a step as it runs, the device did nothing."""
    peak_memory_gib: float


def summarise(measured: Measured, *, name: str, workload_name: str) -> ProfileResult:
    """Returns the profile, without advice."""
    recipe, device, shape = measured.recipe, measured.device, measured.shape
    return ProfileResult(
        name=name,
        workload_name=workload_name,
        device=describe_devices(device, recipe.devices),
        device_type=device.type,
        precision=recipe.precision,
        loader=next(iter(recipe.model_dump(mode="json")["loader"])),
        batch_size=micro_batch_of(recipe),
        accumulation_steps=accumulation_of(recipe),
        samples_per_step=recipe.samples_per_step * shape.growth // recipe.devices,
        devices=recipe.devices,
        image_height_pixels=shape.height,
        image_width_pixels=shape.width,
        peak_memory_gib=measured.peak_memory_gib,
        memory_limit_gib=memory_limit_gib(device, gpu_fraction=0.0, cpu_fraction=1.0),
        resolved=found_for_auto(measured.asked, recipe),
        times=_times(measured),
        work=_step_work(measured),
        rates=_device_rates(measured.rates),
        bounds=_bounds(measured),
    )


def found_for_auto(asked: Recipe, ran: Recipe) -> dict[str, str]:
    """Returns what was found for each field that was `auto`."""
    fields = ("batch_size", "accumulation_steps", *CHOICES)
    found = {name: str(getattr(ran, name)) for name in fields if getattr(asked, name) == "auto"}
    if asked.effective_batch_size is not None:
        found["batch_size"] = str(ran.batch_size)
    ours, loader = asked.loader, ran.loader
    if isinstance(ours, Streaming) and ours.workers == "auto" and isinstance(loader, Streaming):
        found["loader.workers"] = str(loader.workers)
    return found


def _times(measured: Measured) -> StepTimes:
    taken = measured.taken
    total_s, launched_s = taken.total_s, taken.launched_s
    sum_s = sum(total_s.values())
    computing: tuple[Phase, ...] = ("forward", "backward", "forward_backward", "optimizer")
    computing_s = sum(total_s[phase] for phase in computing)
    launch_frac = sum(launched_s[phase] for phase in computing) / computing_s
    return StepTimes(
        step_ms=MS * taken.step_s,
        step_low_ms=MS * taken.low_s,
        step_high_ms=MS * taken.high_s,
        num_steps=taken.num_steps,
        unprofiled_wait_ms=MS * taken.waited_s,
        sync_ms=_scaled(measured.averaging_s, MS),
        profiled_step_ms=MS * sum_s,
        overlap_ms=MS * (sum_s - taken.step_s),
        idle_ms=_scaled(measured.idle_s, MS),
        launch_frac=None if measured.device.type == "cpu" else launch_frac,
        data_wait_ms=MS * total_s["data_wait"],
        host_to_device_ms=MS * total_s["host_to_device"],
        forward_ms=MS * total_s["forward"],
        backward_ms=MS * total_s["backward"],
        forward_backward_ms=MS * total_s["forward_backward"],
        optimizer_ms=MS * total_s["optimizer"],
        loop_ms=MS * total_s["loop"],
    )


def _step_work(measured: Measured) -> StepWork:
    work = measured.work
    return StepWork(
        gflop=_scaled(work.flop, 1e-9),
        parameters_mib=work.parts.parameters / MIB,
        optimizer_state_mib=work.parts.optimizer_state / MIB,
        activations_mib=work.parts.saved / MIB,
        moved_mib=work.moved_bytes / MIB,
        copied_mib=measured.taken.copied_bytes / MIB,
    )


def _device_rates(rates: Rates) -> DeviceRates:
    return DeviceRates(
        matrix_tflop_per_s={name: rate / 1e12 for name, rate in rates.flop_per_s.items()},
        memory_gb_per_s=rates.memory_bytes_per_s / 1e9,
        host_to_device_gb_per_s=_scaled(rates.host_bytes_per_s, 1e-9),
    )


def _bounds(measured: Measured) -> Bounds | None:
    work, rates, taken = measured.work, measured.rates, measured.taken
    if work.flop is None:
        return None
    peak = rates.flop_per_s[measured.recipe.precision]
    roof = roofline(
        flop=work.flop,
        moved_bytes=work.moved_bytes,
        host_bytes=taken.copied_bytes,
        flop_per_s=peak,
        memory_bytes_per_s=rates.memory_bytes_per_s,
        host_bytes_per_s=rates.host_bytes_per_s,
        step_s=taken.step_s,
    )
    return Bounds(
        compute_bound_ms=MS * roof.compute_s,
        memory_bound_ms=MS * roof.memory_s,
        host_bound_ms=_scaled(roof.host_s, MS),
        binding=roof.binding,
        intensity_flop_per_byte=roof.intensity,
        achieved_tflop_per_s=roof.achieved_flop_per_s / 1e12,
        peak_frac=roof.achieved_flop_per_s / peak,
        roof_frac=roof.least_s / taken.step_s,
    )


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
