"""Real optimizer steps outside a training, for what is measured before one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import torch
from torch import Tensor

from tune_speed.data.split import Splits
from tune_speed.training.build import build_forward, build_model, step_schedule_of
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import Group, Stepper, accumulation_of, micro_batch_of

Batch = tuple[Tensor, Tensor]
"""Images (B, C, H, W) and labels (B,), on the device."""
TakeStep = Callable[[Iterator[Batch]], int]
"""Does one optimizer step on the next batches and returns how many samples it had."""


@contextmanager
def probe_step(
    recipe: Recipe, splits: Splits, *, device: torch.device, compiles: bool = False
) -> Iterator[TakeStep]:
    """Gives what takes the steps of a recipe, with a model of its own that learns nothing.

    The steps have the shape that the run begins with, which is its quickest where images grow.
    With `compiles` False `torch.compile` is left out. Random numbers are as before afterwards.
    """
    (shape, _), *_ = step_schedule_of(recipe, splits)
    num_batches = accumulation_of(recipe) * shape.growth
    num_samples = num_batches * micro_batch_of(recipe)

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        model = build_model(recipe, splits, seed=0, device=device)
        model.train()
        forward = build_forward(model, recipe) if compiles else model
        stepper = Stepper.still(model, forward, recipe, device=device)

        def take_step(batches: Iterator[Batch]) -> int:
            stepper.take_still(Group(num_samples, islice(batches, num_batches)), shape)
            return num_samples

        yield take_step
