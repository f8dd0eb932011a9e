"""Mean logits of an image's views."""

from torch import Tensor, nn
from torch.nn import functional

SHIFT = 1
"""Pixels of a shift, in both directions at once."""


def mirrored(model: nn.Module, images: Tensor) -> Tensor:
    """Returns the mean logits (N, K) of the images (N, C, H, W) and their mirror images."""
    logits: Tensor = (model(images) + model(images.flip(3))) / 2
    return logits


def mirrored_and_shifted(model: nn.Module, images: Tensor) -> Tensor:
    """Returns the mean of `mirrored` over images, with weight 1/2, and two shifts of them."""
    height, width = images.shape[2:]
    padded = functional.pad(images, (SHIFT,) * 4, mode="reflect")
    up_left = padded[:, :, 2 * SHIFT :, 2 * SHIFT :]
    down_right = padded[:, :, :height, :width]
    shifted = (mirrored(model, up_left) + mirrored(model, down_right)) / 2
    return (mirrored(model, images) + shifted) / 2
