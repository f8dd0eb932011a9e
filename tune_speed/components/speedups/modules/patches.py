"""Patches of images as a convolution sees them, their covariance, and filters that whiten them.

A patch has D values, channels · kernel height · kernel width, and an image P patches.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

# Values of the patches that are unfolded at once, 64 MiB.
MOST_VALUES = 2**24


def first_conv(model: nn.Module) -> nn.Conv2d | None:
    """Returns the convolution that was registered first, or None."""
    return next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)


def statistics(conv: nn.Conv2d, batches: Iterable[Tensor], *, count: int) -> tuple[Tensor, Tensor]:
    """Returns mean (D,) and covariance (D, D) of the patches that `conv` sees, float64.

    Of the first `count` images of the batches (B, C, H, W); no more batches are drawn than that.
    """
    size = conv.in_channels * conv.kernel_size[0] * conv.kernel_size[1]
    num_patches = 0
    # In fp32 the covariance, a difference of large sums, may lose its digits.
    total = torch.zeros(size, dtype=torch.float64, device=conv.weight.device)
    squares = torch.zeros(size, size, dtype=torch.float64, device=conv.weight.device)
    for images in _first(batches, count):
        for patches in _patches(conv, images):
            num_patches += len(patches)
            total += patches.sum(dim=0, dtype=torch.float64)
            squares += (patches.T @ patches).double()
    mean = total / num_patches
    return mean, squares / num_patches - mean[:, None] * mean


@torch.no_grad()
def set_filters(conv: nn.Conv2d, covariance: Tensor, *, eps: float) -> None:
    """Sets the first filters of a convolution to whiten patches of that covariance (D, D)."""
    values, vectors = torch.linalg.eigh(covariance.cpu())
    num_pairs = min(conv.out_channels // 2, len(values))
    # eigh gives the smallest first, and rounding may take it below 0.
    scales = (values.flip(0)[:num_pairs].clamp(min=0) + eps).sqrt()
    filters = vectors.flip(1)[:, :num_pairs].T / scales[:, None]
    pairs = torch.cat([filters, -filters]).reshape(-1, *conv.weight.shape[1:])
    conv.weight[: len(pairs)] = pairs.to(conv.weight)
    if conv.bias is not None:
        conv.bias.zero_()


def _first(batches: Iterable[Tensor], count: int) -> Iterator[Tensor]:
    left = count
    for images in batches:
        yield images[:left]
        left -= len(images)
        if left <= 0:
            return


def _patches(conv: nn.Conv2d, images: Tensor) -> Iterator[Tensor]:
    """Yields the patches of a few images after the other, (B · P, D)."""
    assert not isinstance(conv.padding, str), "convolutions of networks have padding in numbers"
    height, width = images.shape[2:]
    values = conv.weight[0].numel() * height * width
    step = max(1, MOST_VALUES * conv.stride[0] * conv.stride[1] // values)
    for few in torch.split(images.float(), step):
        columns = functional.unfold(few, conv.kernel_size, conv.dilation, conv.padding, conv.stride)
        yield columns.transpose(1, 2).flatten(0, 1)
