"""The gradient of a micro-batch."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tune_speed.components.speedups.base import Shape
from tune_speed.training.recipe import Recipe

AUTOCAST_DTYPES = {
    "fp32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "half": None,
    "half_fp32_norms": None,
}

Forward = Callable[[Tensor], Tensor]
"""Images (N, C, H, W) to logits (N, num_classes)."""


class Gradient(Protocol):
    """Adds micro-batches' gradients to those of the parameters."""

    def add(
        self, images: Tensor, labels: Tensor, *, divisor: float, shape: Shape, frac: float
    ) -> Tensor:
        """Adds the gradient of (sum of losses) / `divisor`, scaled; returns that sum.

        Images are (B, C, H, W), normalised; labels (B,). The step learns from `divisor` samples,
        and ends at `frac` of the run, in (0, 1].
        """


class EagerGradient:
    """Computes it operation by operation."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        forward: Forward,
        scaler: torch.amp.GradScaler,
        device: torch.device,
    ) -> None:
        """Takes the model, compiled or not, and the scaler of its loss."""
        self._recipe, self._forward, self._scaler = recipe, forward, scaler
        self._device = device

    def add(
        self, images: Tensor, labels: Tensor, *, divisor: float, shape: Shape, frac: float
    ) -> Tensor:
        speedups, forward, device = self._recipe.speedups, self._forward, self._device
        images = speedups.resolution.change_batch(images, shape)
        images, labels = speedups.selection.choose(images, labels, shape, losses=self._losses)
        loss = sum_of_losses(
            images, labels, self._recipe, frac=frac, forward=forward, device=device
        )
        torch.autograd.backward(self._scaler.scale(loss / divisor))
        return loss.detach()

    def _losses(self, images: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss of each image, (B,), by which a speed-up may choose among them."""
        dtype = AUTOCAST_DTYPES[self._recipe.precision]
        autocast = torch.autocast(self._device.type, dtype, enabled=dtype is not None)
        with torch.no_grad(), autocast:
            logits = self._forward(images)
        return functional.cross_entropy(logits.float(), labels, reduction="none")


def sum_of_losses(
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    frac: float,
    forward: Forward,
    device: torch.device,
) -> Tensor:
    """Returns the sum over samples of the loss [nat], in fp32 whatever the precision.

    The loss is cross-entropy, unless a speed-up has its own.
    """
    dtype = AUTOCAST_DTYPES[recipe.precision]
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        logits = forward(images)
    smoothing = recipe.label_smoothing
    loss = recipe.speedups.sum_of_losses(
        logits.float(), labels, frac=frac, label_smoothing=smoothing
    )
    if loss is not None:
        return loss
    return functional.cross_entropy(
        logits.float(), labels, reduction="sum", label_smoothing=smoothing
    )
