"""One optimizer step: the gradient of a group of micro-batches, scaled, clipped and applied."""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tune_speed.recipe import Recipe

AUTOCAST_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

Forward = Callable[[Tensor], Tensor]
"""Images (N, C, H, W) to logits (N, num_classes)."""


class Group(NamedTuple):
    """The micro-batches of one optimizer step."""

    num_samples: int
    micro_batches: Iterable[tuple[Tensor, Tensor]]


def micro_batch_of(recipe: Recipe) -> int:
    """Returns the samples of one micro-batch; `accumulation_steps: auto` is resolved by then."""
    assert recipe.batch_size is not None, "accumulation_steps: auto is resolved before training"
    return recipe.batch_size


def is_lone_image(error: BaseException) -> bool:
    """Returns whether a batch norm refuses a micro-batch of one image, of which it sees one pixel.

    The variance of one value is none, so torch raises instead of dividing by zero.
    """
    return "more than 1 value per channel" in str(error)


def build_optimizer(
    model: nn.Module, recipe: Recipe, *, device: torch.device
) -> tuple[torch.optim.Optimizer, torch.amp.GradScaler]:
    """Returns the recipe's optimizer, and the scaler of the loss, which acts in fp16 only."""
    optimizer = recipe.optimizer.build(
        model,
        effective_batch_size=recipe.samples_per_step,
        # Fused: one pass over the weights, and a scaled step that does not wait for the device.
        fused=device.type in ("cpu", "cuda"),
    )
    # 2^16 is torch's start on CUDA; on a CPU it overflows fp16 in the first step.
    init_scale = 2.0**16 if device.type == "cuda" else 2.0**10
    is_fp16 = recipe.precision == "fp16"
    return optimizer, torch.amp.GradScaler(device.type, enabled=is_fp16, init_scale=init_scale)


def take_step(
    group: Group,
    recipe: Recipe,
    *,
    forward: Forward,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    device: torch.device,
) -> Tensor:
    """Does one optimizer step and returns the sum of its samples' losses, on the device.

    The gradient is that of (1/M) Σ loss over all M samples of the group, whatever the sizes of
    its micro-batches: each contributes its sum divided by M, never its own mean divided by their
    number, which would weigh the samples of a ragged micro-batch more. With batch norm the split
    still matters, because each micro-batch is normalised by its own statistics.
    """
    loss_sum = torch.zeros((), device=device)
    for images, labels in group.micro_batches:
        loss = sum_of_losses(images, labels, recipe, forward=forward, device=device)
        torch.autograd.backward(scaler.scale(loss / group.num_samples))
        loss_sum += loss.detach()
    if recipe.clip_norm is not None:
        scaler.unscale_(optimizer)
        parameters = chain.from_iterable(g["params"] for g in optimizer.param_groups)
        nn.utils.clip_grad_norm_(parameters, recipe.clip_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return loss_sum


def sum_of_losses(
    images: Tensor, labels: Tensor, recipe: Recipe, *, forward: Forward, device: torch.device
) -> Tensor:
    """Returns the sum over samples of the cross-entropy [nat], in fp32 whatever the precision."""
    dtype = AUTOCAST_DTYPES[recipe.precision]
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        logits = forward(images)
    return functional.cross_entropy(
        logits.float(), labels, reduction="sum", label_smoothing=recipe.label_smoothing
    )
