"""A recipe's own pipeline: loader, model, optimizer and speed-ups, with borders between phases."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import repeat
from typing import NamedTuple

import torch

from tune_speed.components.speedups.base import Shape
from tune_speed.data.loaders.base import Loader
from tune_speed.data.split import Splits
from tune_speed.experiments.profiling.phases import PhaseTimer, TimedGradient, time_replays
from tune_speed.runtime.device import synchronizer
from tune_speed.runtime.step_timer import warm_up
from tune_speed.runtime.training_clock import Waits
from tune_speed.training import build
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.batches import open_steps
from tune_speed.training.step.step import Group, Stepper
from tune_speed.training.warm_up import dummy_groups

# Steps are taken for so long [s] before any is timed, two at least.
WARM_UP_S = 1.0


class Pipeline(NamedTuple):
    """A recipe's own pipeline, with borders that cost nothing while the timer is off."""

    take: Callable[[], int]
    """Does the next optimizer step on real batches; returns its number of samples."""
    take_dummy: Callable[[Group], None]
    timer: PhaseTimer
    waits: Waits
    stepper: Stepper
    loader: Loader
    shape: Shape
    """Of all its steps."""


@contextmanager
def open_pipeline(
    recipe: Recipe,
    splits: Splits,
    *,
    seed: int,
    device: torch.device,
    before_step: Callable[[], None],
) -> Iterator[Pipeline]:
    """Gives the pipeline of a recipe for one device, of which nothing is `auto`.

    Its steps have the shape that the run begins with, and a rate of zero; `before_step` is
    called before each, and may raise.
    """
    build.set_seed(recipe, seed)
    (shape, _), *_ = build.step_schedule_of(recipe, splits)
    model = build.build_model(recipe, splits, seed=seed, device=device)
    model.train()
    forward = build.build_forward(model, recipe)
    loader = build.open_loader(
        recipe.loader, splits.train, recipe, splits, seed=seed, device=device
    )
    try:
        waits, timer = Waits(), PhaseTimer(synchronize=synchronizer(device))
        stepper = Stepper.still(model, forward, recipe, device=device)
        if stepper.recorder is None:
            stepper.gradient = TimedGradient(stepper.gradient, timer, stepper.scaler)
        else:
            time_replays(stepper.recorder, timer)
        steps = open_steps(loader, recipe, repeat((shape, 1)), waits)

        def take_group(group: Group) -> None:
            batches = timer.over(iter(group.micro_batches), device)
            stepper.take_still(group._replace(micro_batches=batches), shape)

        def take() -> int:
            before_step()
            before = timer.enter("data_wait")
            _, group = next(steps)
            timer.enter(before or "loop")
            take_group(group)
            return group.num_samples

        with closing(steps):
            yield Pipeline(take, take_group, timer, waits, stepper, loader, shape)
    finally:
        loader.close()


def warm_up_pipeline(pipeline: Pipeline, recipe: Recipe, *, device: torch.device) -> float:
    """Meets each kind of step of an epoch once, then takes steps; returns the seconds of one."""
    for group in dummy_groups(recipe, pipeline.loader, pipeline.shape):
        pipeline.take_dummy(group)
    return warm_up(
        pipeline.take,
        limit_s=WARM_UP_S,
        synchronize=synchronizer(device),
        now=time.perf_counter,
    )
