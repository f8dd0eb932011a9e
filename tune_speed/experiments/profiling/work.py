"""What one optimizer step computes and moves, counted rather than timed.

| symbol | meaning                                                             | how it is known   |
|--------|---------------------------------------------------------------------|-------------------|
| F      | floating-point operations of forward and backward                   | counted (`flops`) |
| m      | micro-batches of the step                                           | exact             |
| P      | bytes of the parameters                                             | exact             |
| G      | bytes of their gradients                                            | exact             |
| S      | bytes of the optimizer's state                                      | exact             |
| A      | bytes that a micro-batch's forward saves for its backward           | measured          |
| X      | bytes of a micro-batch's images                                     | exact             |

Bytes that are moved, at least, if nothing stays in a cache from one use to the next:

    forward       P + X + A        weights and images read, what is saved written
    backward      P + A + G        weights and what is saved read, gradients written
    next ones     + G each         gradients so far read, to be added to
    optimizer     2 P + G + 2 S    weights and state read and written, gradients read

    B = m (2 P + X + 2 A + G) + (m - 1) G + 2 P + G + 2 S
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from tune_speed.data.split import Splits
from tune_speed.experiments.profiling.pipeline import Pipeline
from tune_speed.training.build import open_dummy
from tune_speed.training.flops import step_flop
from tune_speed.training.preparation import without_trace
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.gradient import EagerGradient
from tune_speed.training.step.step import accumulation_of, build_optimizer, micro_batch_of


class Work(NamedTuple):
    """What a step computes, and its bytes, by the symbols of this module's table."""

    parameters: int
    gradients: int
    optimizer_state: int
    saved: int
    """A: what a micro-batch's forward saves."""
    images: int
    """X: of a micro-batch."""
    num_micro_batches: int
    flop: float | None = None
    """Operations; None for a network without any that are counted."""

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
        images=micro_batch_of(recipe) * channels * shape.height * shape.width * 4,
        num_micro_batches=accumulation_of(recipe) * shape.growth,
        flop=flop and flop * recipe.samples_per_step * shape.growth,
    )


def _saved(pipeline: Pipeline, recipe: Recipe, splits: Splits, device: torch.device) -> int:
    """Returns the bytes that the forward of one micro-batch saves, on black images."""
    model, shape, size = pipeline.stepper.model, pipeline.shape, micro_batch_of(recipe)
    _, scaler = build_optimizer(model, recipe, device=device)
    # Of the uncompiled network, whatever the recipe has.
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
