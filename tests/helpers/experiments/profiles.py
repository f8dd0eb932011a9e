"""Profiles whose figures are made up."""

from typing import Any

import torch

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.optim.optimizers import Sgd
from tune_speed.experiments.profiling.advice import Situation
from tune_speed.experiments.profiling.result import (
    Bounds,
    DeviceRates,
    ProfileResult,
    StepTimes,
    StepWork,
)
from tune_speed.training.recipe import Recipe

TIMES: dict[str, float | None] = {
    "step_ms": 100.0,
    "step_low_ms": 98.0,
    "step_high_ms": 104.0,
    "data_wait_ms": 2.0,
    "unprofiled_wait_ms": 2.0,
    "host_to_device_ms": 1.0,
    "forward_ms": 30.0,
    "backward_ms": 60.0,
    "forward_backward_ms": 0.0,
    "optimizer_ms": 6.0,
    "sync_ms": 0.0,
    "loop_ms": 1.0,
    "overlap_ms": 0.0,
    "idle_ms": 1.0,
}
"""Of a step in which nothing stands out."""


def make_profile(
    *,
    device_type: str = "cpu",
    peak_frac: float = 0.4,
    rates: dict[str, float] | None = None,
    launch_frac: float | None = None,
    used_gib: float = 1.0,
    recipe: Recipe | None = None,
    **times: float | None,
) -> ProfileResult:
    """Returns a profile; what a phase takes more comes on top of the rest."""
    figures = {**TIMES, **times}
    own = ("data_wait", "host_to_device", "forward", "backward", "forward_backward", "optimizer")
    whole_ms = sum(figures[f"{phase}_ms"] or 0.0 for phase in (*own, "loop"))
    recipe = recipe or make_recipe_of()
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
        times=StepTimes(
            num_steps=20, launch_frac=launch_frac, profiled_step_ms=whole_ms, **figures
        ),
        work=StepWork(
            gflop=4.0,
            parameters_mib=1.0,
            optimizer_state_mib=1.0,
            activations_mib=20.0,
            moved_mib=60.0,
            copied_mib=0.0 if device_type == "cpu" else 1.5,
        ),
        rates=DeviceRates(
            matrix_tflop_per_s=rates or {"fp32": 0.1, "bf16": 0.11},
            memory_gb_per_s=10.0,
            host_to_device_gb_per_s=None if device_type == "cpu" else 5.0,
        ),
        bounds=Bounds(
            compute_bound_ms=40.0,
            memory_bound_ms=6.3,
            host_bound_ms=None if device_type == "cpu" else 0.3,
            binding="compute",
            intensity_flop_per_byte=64.0,
            achieved_tflop_per_s=0.04,
            peak_frac=peak_frac,
            roof_frac=peak_frac,
        ),
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
        has_convolutions=True,
    )
