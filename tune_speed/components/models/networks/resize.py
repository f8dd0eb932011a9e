"""Resizing images inside a network, for weights that were published for larger ones."""

import functools

import torch.nn.functional as F
from torch import Tensor, nn


def resize_images(network: nn.Module, size: int | None) -> nn.Module:
    """Returns `network`, which resizes its images to `size` pixels a side; None: as they are."""
    # A hook, so that the weights keep their names.
    if size is not None:
        network.register_forward_pre_hook(functools.partial(_resized, size=size))
    return network


def _resized(_: nn.Module, images: tuple[Tensor], *, size: int) -> Tensor:
    return F.interpolate(images[0], size=(size, size), mode="bicubic")
