"""What a step of a pipeline computes and moves; counting changes nothing of its model."""

from typing import NamedTuple

import torch

from tune_speed.data.split import Splits
from tune_speed.experiments.profiling.pipeline import Pipeline
from tune_speed.experiments.profiling.work import (
    StepBytes,
    moved_bytes,
    parameter_bytes,
    saved_bytes,
    state_bytes,
)
from tune_speed.training.flops import training_flop_per_sample
from tune_speed.training.loop import open_dummy
from tune_speed.training.preparation import without_trace
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.gradient import AUTOCAST_DTYPES, EagerGradient
from tune_speed.training.step.step import Group, accumulation_of, build_optimizer, micro_batch_of


class Work(NamedTuple):
    """Of a step."""

    flop: float | None
    """Operations; None for a network without any that are counted."""
    moved_bytes: int
    """Within the device, an estimate."""
    parts: StepBytes


def count_work(pipeline: Pipeline, recipe: Recipe, splits: Splits, *, device: torch.device) -> Work:
    """Returns what a step does, once steps were taken; the recipe is for one device."""
    shape, model = pipeline.shape, pipeline.model
    _, _, _, channels = splits.train.pixels.shape
    group = Group(recipe.samples_per_step * shape.growth, ())
    per_sample = training_flop_per_sample(
        model,
        image_shape=(channels, shape.height, shape.width),
        device=device,
        autocast_dtype=AUTOCAST_DTYPES[recipe.precision],
    )
    parameters, gradients = parameter_bytes(model)
    image_bytes = micro_batch_of(recipe) * channels * shape.height * shape.width * 4
    parts = StepBytes(
        parameters=parameters,
        gradients=gradients,
        optimizer_state=state_bytes(pipeline.optimizer),
        saved=_saved(pipeline, recipe, splits, device),
        images=image_bytes,
        num_micro_batches=accumulation_of(recipe) * shape.growth,
    )
    flop = None if per_sample is None else per_sample * group.num_learned(recipe, shape)
    return Work(flop, moved_bytes(parts), parts)


def _saved(pipeline: Pipeline, recipe: Recipe, splits: Splits, device: torch.device) -> int:
    """Returns the bytes that the forward of one micro-batch keeps, on black images."""
    model, shape, size = pipeline.model, pipeline.shape, micro_batch_of(recipe)
    _, scaler = build_optimizer(model, recipe, device=device)
    eager = EagerGradient(recipe, forward=model, scaler=scaler, device=device)
    dummy = open_dummy(recipe, splits, num_samples=size, device=device)
    ((images, labels),) = dummy.epoch(0)
    with without_trace(model, device=device):
        recipe.speedups.begin_step(model, shape)
        found = saved_bytes(
            lambda: eager.add(images, labels, divisor=float(size), shape=shape, frac=1.0), model
        )
        model.zero_grad()
    dummy.close()
    return found
