"""How much arithmetic a training does: a measure of work that does not depend on the machine."""

import copy
import logging
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tune_speed.components.speedups.base import Shape
from tune_speed.components.speedups.modules.residual import Skipping, find_skipping
from tune_speed.training.build import Job
from tune_speed.training.preparation import without_trace
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.step import Group

_log = logging.getLogger(__name__)
_COUNTED: dict[tuple[object, ...], float | None] = {}
"""What this process has counted: trials of a search share networks, and counting takes a second."""

# Images of the batch that is counted; batch norm needs more than one.
NUM_IMAGES = 2


def counted(job: Job, model: nn.Module) -> dict[Shape, float | None]:
    """Returns the operations per sample of each shape of step; None: they cannot be counted."""
    recipe, channels = job.recipe, job.splits.train.pixels.shape[3]
    fields = recipe.model, recipe.speedups, recipe.freeze, recipe.activation_checkpointing
    network = (repr(fields), recipe.precision, job.splits.num_classes)
    found: dict[Shape, float | None] = {}
    for shape in job.shapes:
        key = (*network, channels, recipe.samples_per_step, recipe.batch_size, shape)
        if key not in _COUNTED:
            with without_trace(model, device=job.device):
                recipe.begin_step(model, shape)
                _COUNTED[key] = _counted(model, recipe, shape, channels=channels)
        found[shape] = _COUNTED[key]
    return found


def _counted(model: nn.Module, recipe: Recipe, shape: Shape, *, channels: int) -> float | None:
    try:
        return step_flop(model, recipe, shape, channels=channels)
    # No training fails of a network that cannot be copied or needs values to go on.
    except Exception:
        _log.warning("operations were not counted", exc_info=True)
        return None


def step_flop(model: nn.Module, recipe: Recipe, shape: Shape, *, channels: int) -> float | None:
    """Returns the operations of a step of that shape per sample that goes through it.

    With F of forward and backward and f of a forward alone, of n samples k of which are learned
    from: F where k = n, else (k F + n f) / n, as all go forward first to be chosen from.
    """
    count = partial(
        training_flop_per_sample, model, image_shape=(channels, shape.height, shape.width)
    )
    group = Group(recipe.samples_per_step * shape.growth, ())
    learned_frac = group.num_learned(recipe, shape) / group.num_samples
    flop = count()
    if flop is None or learned_frac == 1.0:
        return flop
    return flop * learned_frac + (count(has_backward=False) or 0.0)


def training_flop_per_sample(
    model: nn.Module, *, image_shape: tuple[int, int, int], has_backward: bool = True
) -> float | None:
    """Returns the floating-point operations of forward and backward per image (C, H, W).

    Those of convolutions, matrix products and attention, a multiply-add as two; None without any
    of them, or with recurrent layers. Element-wise operations, augmentation and optimizer are not
    counted, nor what a kernel computes twice, as flash attention does. Of blocks that are skipped
    at random it is the mean, Σ p_l · (operations of block l). A copy without values goes through
    the shapes alone: neither memory of the device nor random numbers are touched.
    """
    # What torch.compile wraps: compiled kernels hide their operations from the counter.
    eager = getattr(model, "_orig_mod", model)
    # They are taken apart, step by step of a sequence: a minute for one of timm's Sequencers.
    if any(isinstance(module, nn.RNNBase) for module in eager.modules()):
        return None
    copied = _without_values(eager).train()
    images = torch.zeros((NUM_IMAGES, *image_shape), device="meta")

    def count() -> int:
        counter = FlopCounterMode(display=False)
        with torch.set_grad_enabled(has_backward), counter:
            logits = copied(images)
            if logits.requires_grad:
                logits.float().sum().backward()
        return int(counter.get_total_flops())

    with torch.random.fork_rng(devices=[]):
        total = _on_average(count, list(find_skipping(copied)))
    return total / NUM_IMAGES if total else None


def _without_values(model: nn.Module) -> nn.Module:
    memo: dict[int, object] = {
        id(each): nn.Parameter(each.detach().to("meta"), requires_grad=each.requires_grad)
        for each in model.parameters()
    }
    memo |= {id(each): each.detach().to("meta") for each in model.buffers()}
    return copy.deepcopy(model, memo)


def _on_average(count: Callable[[], int], blocks: list[Skipping]) -> float:
    survivals = [block.survival for block in blocks]
    for block in blocks:
        block.survival = 0.0
    without = count()
    mean = float(without)
    for block, survival in zip(blocks, survivals, strict=True):
        block.survival = 1.0
        mean += survival * (count() - without)
        block.survival = 0.0
    return mean


def num_parameters(model: nn.Module) -> int:
    """Returns the number of parameters, trainable or not; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())
