"""A recipe's own pipeline, with borders between phases, and what its steps compute and move.

| symbol | meaning                                                   | how it is known   |
|--------|-----------------------------------------------------------|-------------------|
| F      | floating-point operations of forward and backward         | counted (`flops`) |
| m      | micro-batches of the step                                 | exact             |
| P, G   | bytes of the parameters, and of their gradients           | exact             |
| S      | bytes of the optimizer's state                            | exact             |
| A      | bytes that a micro-batch's forward saves for its backward | measured          |
| X      | bytes of a micro-batch's images                           | exact             |

Bytes that are moved, at least, if nothing stays in a cache from one use to the next: of the forward
P + X + A, of the backward P + A + G (and G for each gradient added to), and of the optimizer
2 P + G + 2 S; so B = m (2 P + X + 2 A + G) + (m - 1) G + 2 P + G + 2 S.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tune_speed.components.speedups.base import Shape
from tune_speed.data.loaders.base import Loader
from tune_speed.data.split import Splits
from tune_speed.experiments.profiling.phases import PhaseTimer, TimedGradient, time_replays
from tune_speed.runtime.clock import Waits
from tune_speed.runtime.device import synchronizer
from tune_speed.runtime.step_timer import warm_up
from tune_speed.training import build
from tune_speed.training.build import open_dummy
from tune_speed.training.flops import step_flop
from tune_speed.training.preparation import without_trace
from tune_speed.training.recipe import Recipe
from tune_speed.training.step import step as stepping
from tune_speed.training.step.batches import open_steps
from tune_speed.training.warm_up import dummy_groups

# Steps are taken for so long [s] before any is timed, two at least.
WARM_UP_S = 1.0


class Pipeline(NamedTuple):
    """A recipe's own pipeline, with borders that cost nothing while the timer is off."""

    take: Callable[[], int]
    """Does the next optimizer step on real batches; returns its number of samples."""
    take_dummy: Callable[[stepping.Group], None]
    timer: PhaseTimer
    waits: Waits
    stepper: stepping.Stepper
    loader: Loader
    shape: Shape


@contextmanager
def open_pipeline(
    recipe: Recipe,
    splits: Splits,
    *,
    seed: int,
    device: torch.device,
    before_step: Callable[[], None],
) -> Iterator[Pipeline]:
    """Its steps have the shape that the run begins with, and a rate of zero."""
    build.set_seed(recipe, seed)
    (shape, _), *_ = build.step_schedule_of(recipe, splits)
    model = build.build_model(recipe, splits, seed=seed, device=device)
    model.train()
    forward = build.build_forward(model, recipe)
    loader = build.open_loader(recipe, splits.train, splits, seed=seed, device=device)
    try:
        waits, timer = Waits(), PhaseTimer(synchronize=synchronizer(device))
        stepper = stepping.Stepper.still(model, forward, recipe, device=device)
        if stepper.recorder is None:
            stepper.gradient = TimedGradient(stepper.gradient, timer, stepper.scaler)
        else:
            time_replays(stepper.recorder, timer)
        steps = open_steps(loader, recipe, repeat((shape, 1)), waits)

        def take_group(group: stepping.Group) -> None:
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


class Work(NamedTuple):
    """What a step computes, and its bytes, by the symbols of this module's table."""

    parameters: int
    gradients: int
    optimizer_state: int
    saved: int
    images: int
    num_micro_batches: int
    flop: float | None = None

    @property
    def moved_bytes(self) -> int:
        # An estimate: what is not saved (activations' gradients, results of element-wise
        # operations) is left out, and what a cache holds is counted.
        p, g, s, m = self.parameters, self.gradients, self.optimizer_state, self.num_micro_batches
        return m * (2 * p + self.images + 2 * self.saved + g) + (m - 1) * g + 2 * p + g + 2 * s


def parameter_bytes(model: nn.Module) -> tuple[int, int]:
    parameters = list(model.parameters())
    return (
        sum(p.nbytes for p in parameters),
        sum(p.nbytes for p in parameters if p.requires_grad),
    )


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    leaves = tree_leaves(list(optimizer.state.values()))
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))


def saved_bytes(call: Callable[[], object], model: nn.Module) -> int:
    """Returns the bytes that autograd saves during `call`; parameters and buffers do not count."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    # By address, as memory that several operations save counts once.
    saved_by_address: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        address = tensor.untyped_storage().data_ptr()
        if address not in own:
            saved_by_address[address] = max(saved_by_address.get(address, 0), tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call()
    return sum(saved_by_address.values())


def count_work(pipeline: Pipeline, recipe: Recipe, splits: Splits, *, device: torch.device) -> Work:
    shape, model = pipeline.shape, pipeline.stepper.model
    _, _, _, channels = splits.train.pixels.shape
    parameters, gradients = parameter_bytes(model)
    flop = step_flop(model, recipe, shape, channels=channels)
    return Work(
        parameters=parameters,
        gradients=gradients,
        optimizer_state=state_bytes(pipeline.stepper.optimizer),
        saved=_saved(pipeline, recipe, splits, device),
        # Loaders give normalised images, of four bytes a value.
        images=stepping.micro_batch_of(recipe) * channels * shape.height * shape.width * 4,
        num_micro_batches=stepping.accumulation_of(recipe) * shape.growth,
        flop=flop and flop * recipe.samples_per_step * shape.growth,
    )


def _saved(pipeline: Pipeline, recipe: Recipe, splits: Splits, device: torch.device) -> int:
    model, shape, size = pipeline.stepper.model, pipeline.shape, stepping.micro_batch_of(recipe)
    _, scaler = stepping.build_optimizer(model, recipe, device=device)
    # Of the uncompiled network, whatever the recipe has.
    eager = stepping.EagerGradient(recipe, forward=model, scaler=scaler, device=device)
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
