"""A recipe's own pipeline with marks between phases, and what its steps compute and move.

Bytes that each phase of a step moves, at least, if nothing stays in a cache from one use to the
next. Of m micro-batches with X bytes of images (exact) that save A for their backward (measured),
P of parameters, G of gradients and S of optimizer state (all exact):

    images  1.25 m X               backward   m (P + A + G) + (m - 1) G
    forward      m (P + X + A)     optimizer  2 P + G + 2 S
"""

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
from tune_speed.experiments.profiling.phases import Marks
from tune_speed.experiments.profiling.result import Phase
from tune_speed.runtime.clock import Waits
from tune_speed.training import build
from tune_speed.training.flops import step_flop, training_flop_per_sample
from tune_speed.training.ranks import ALONE
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.batches import open_steps
from tune_speed.training.step.recorded import MOST_BATCHES
from tune_speed.training.step.step import Group, Stepper, accumulation_of, micro_batch_of


class Pipeline(NamedTuple):
    """What takes a recipe's steps."""

    take: Callable[[], int]
    """Does the next optimizer step on real batches; returns its number of samples."""
    take_group: Callable[[Group], None]
    stepper: Stepper
    loader: Loader
    shape: Shape

    @property
    def samples_per_step(self) -> int:
        return self.stepper.recipe.samples_per_step * self.shape.growth


@contextmanager
def open_pipeline(
    recipe: Recipe,
    splits: Splits,
    *,
    seed: int,
    device: torch.device,
    before_step: Callable[[], None] = lambda: None,
) -> Iterator[Pipeline]:
    """Its steps have the shape that the run begins with, and a rate of zero."""
    build.set_seed(recipe, seed)
    (shape, _), *_ = build.step_schedule_of(recipe, splits)
    model = build.build_model(recipe, splits, seed=seed, device=device)
    model.train()
    forward = build.build_forward(model, recipe)
    loader = build.open_loader(recipe, splits.train, splits, seed=seed, device=device)
    with closing(loader):
        stepper = Stepper.still(model, forward, recipe, device=device)
        marks = Marks(stepper.scaler)
        # As for a recorded step, so that batches come before their images are made.
        planning = recipe.model_copy(update={"cuda_graph": True})
        steps = open_steps(loader, planning, repeat((shape, 1)), Waits())

        def take_group(group: Group) -> None:
            is_short = group.num_batches(recipe, ALONE) <= MOST_BATCHES
            is_recorded = stepper.recorder is not None and is_short
            batches = marks.over(group.micro_batches, is_recorded=is_recorded)
            stepper.take_still(group._replace(micro_batches=batches), shape)
            marks.enter(None)

        def take() -> int:
            marks.enter("loop")
            before_step()
            marks.enter("data_wait")
            _, group = next(steps)
            marks.enter("loop")
            take_group(group)
            return group.num_samples

        with closing(steps):
            yield Pipeline(take, take_group, stepper, loader, shape)


def moved_bytes(pipeline: Pipeline) -> dict[Phase, int]:
    """Returns the bytes of this module's table, of the uncompiled network; takes a step of it."""
    # An estimate: what is not saved (activations' gradients, results of element-wise operations) is
    # left out, and what a cache holds is counted.
    stepper, shape = pipeline.stepper, pipeline.shape
    recipe, model, size = stepper.recipe, stepper.model, micro_batch_of(stepper.recipe)
    eager = Stepper.still(model, model, recipe, device=stepper.device, is_recorded=False)
    images, labels = pipeline.loader.dummy(size)
    group = Group(size, [(images, labels)])
    a = saved_bytes(lambda: eager.take_still(group, shape), model)
    p = sum(each.nbytes for each in model.parameters())
    g = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    leaves = tree_leaves(list(stepper.optimizer.state.values()))
    s = sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))
    m, x = accumulation_of(recipe) * shape.growth, images.nbytes
    return {
        "images": m * (x + x // 4),
        "forward": m * (p + x + a),
        "backward": m * (p + a + g) + (m - 1) * g,
        "optimizer": 2 * p + g + 2 * s,
    }


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


def count_flop(pipeline: Pipeline, *, channels: int) -> dict[Phase, float] | None:
    """Returns the operations of forward and backward of a step; None if they are not counted."""
    model, recipe, shape = pipeline.stepper.model, pipeline.stepper.recipe, pipeline.shape
    total = step_flop(model, recipe, shape, channels=channels)
    if total is None:
        return None
    size = (channels, shape.height, shape.width)
    both = training_flop_per_sample(model, image_shape=size) or 0.0
    forward = training_flop_per_sample(model, image_shape=size, has_backward=False) or 0.0
    # Where a speed-up chooses samples, all of them go forward and this share is learned from.
    learned_frac = 1.0 if total == both else (total - forward) / both
    backward = learned_frac * (both - forward)
    samples = pipeline.samples_per_step
    return {"forward": samples * (total - backward), "backward": samples * backward}
