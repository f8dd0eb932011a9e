"""Profiles whose figures are made up."""

from typing import Any

import torch

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.optim.optimizers import Sgd
from tune_speed.experiments.profiling.advice import Situation
from tune_speed.experiments.profiling.result import (
    PHASES,
    Bounds,
    DeviceRates,
    ProfileResult,
    StepTimes,
)
from tune_speed.training.recipe import Recipe

TIMES: dict[str, float | None] = {
    "step_ms": 100.0,
    "step_low_ms": 98.0,
    "step_high_ms": 104.0,
    "data_wait_ms": 2.0,
    "images_ms": 1.0,
    "forward_ms": 30.0,
    "backward_ms": 60.0,
    "forward_backward_ms": 0.0,
    "optimizer_ms": 6.0,
    "loop_ms": 1.0,
    "idle_ms": 1.0,
}
"""Of a step in which nothing stands out."""


def make_bounds(peak_frac: float, *, binding: str = "compute") -> Bounds:
    return Bounds(
        gflop=4.0,
        moved_mib=60.0,
        compute_bound_ms=40.0,
        memory_bound_ms=6.3,
        binding=binding,
        achieved_tflop_per_s=0.04,
        peak_frac=peak_frac,
        roof_frac=peak_frac,
    )


def make_profile(
    *,
    device_type: str = "cpu",
    peak_frac: float = 0.4,
    binding: str = "compute",
    rates: dict[str, float] | None = None,
    used_gib: float = 1.0,
    recipe: Recipe | None = None,
    **times: float | None,
) -> ProfileResult:
    """Returns a profile; what a phase takes more comes on top of the rest."""
    figures = {**TIMES, **times}
    whole_ms = sum(figures[f"{phase}_ms"] or 0.0 for phase in PHASES)
    recipe = recipe or make_recipe_of()
    bounds = make_bounds(peak_frac, binding=binding)
    by_phase = {"forward": bounds, "backward": bounds}
    return ProfileResult(
        name="tiny",
        workload_name="digits",
        device="cpu (1 threads, test)" if device_type == "cpu" else "a GPU",
        device_type=device_type,
        precision=recipe.precision,
        loader="dataloader",
        batch_size=recipe.batch_size,
        accumulation_steps=recipe.accumulation_steps,
        samples_per_step=recipe.samples_per_step // recipe.devices,
        devices=recipe.devices,
        image_height_pixels=8,
        image_width_pixels=8,
        peak_memory_gib=used_gib,
        memory_limit_gib=10.0,
        resolved={},
        times=StepTimes(num_steps=20, num_launches=300, profiled_step_ms=whole_ms, **figures),
        rates=DeviceRates(
            matrix_tflop_per_s=rates or {"fp32": 0.1, "bf16": 0.11}, memory_gb_per_s=10.0
        ),
        bounds=bounds,
        phase_bounds={**by_phase, "optimizer": make_bounds(0.3, binding="memory")},
    )


def make_recipe_of(**changes: Any) -> Recipe:
    """Returns a recipe whose model is in the table of models."""
    fields = {"optimizer": Sgd(lr=0.1), "epochs": 2.0, "batch_size": 8, **changes}
    return Recipe(model=ResNet20(), **fields)


def make_situation(
    *,
    device_type: str = "cpu",
    spare_cores: int = 0,
    set_bytes: int = 10**12,
    recipe: dict[str, Any] | None = None,
    **profile: Any,
) -> Situation:
    """Returns what rules look at; the device need not exist."""
    changed = make_recipe_of(**(recipe or {}))
    return Situation(
        recipe=changed,
        found=make_profile(device_type=device_type, recipe=changed, **profile),
        device=torch.device(device_type),
        num_devices=1,
        spare_cores=spare_cores,
        set_bytes=set_bytes,
    )
