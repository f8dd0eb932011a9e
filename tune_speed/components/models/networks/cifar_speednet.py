"""A shallow network for small images, with few layers and small maps; `SpeedNet` has the source."""

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

WHITENING_KERNEL = 2
"""Height and width of the first convolution's patches [pixels]."""


class CifarSpeedNet(nn.Module):
    """Images (N, C, H, W) to logits (N, num_classes), with one group of two layers a width."""

    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        widths: Sequence[int],
        logit_scale: float,
        norm_eps: float,
        norm_momentum: float,
    ) -> None:
        super().__init__()
        self.logit_scale = logit_scale
        # A patch's every direction, and its opposite: what GELU cuts off of one, the other keeps.
        num_filters = 2 * in_channels * WHITENING_KERNEL**2
        self.conv = nn.Conv2d(in_channels, num_filters, WHITENING_KERNEL)
        self.blocks = nn.Sequential(
            *(
                PooledGroup(before, width, norm_eps=norm_eps, norm_momentum=norm_momentum)
                for before, width in pairwise((num_filters, *widths))
            )
        )
        self.classifier = nn.Linear(widths[-1], num_classes, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits (N, num_classes)."""
        return self.head(self.blocks(self.stem(images)))

    def stem(self, images: Tensor) -> Tensor:
        """Returns the features (N, 8 C, H - 1, W - 1) that the first group takes."""
        return F.gelu(self.conv(images))

    def head(self, features: Tensor) -> Tensor:
        """Returns the logits (N, num_classes) for the last group's features (N, width, h, w)."""
        # Not amax: compiled, its backward looks for the maximum among values that it computes
        # again, unrounded, finds it nowhere in fp16 or bf16, and divides by 0.
        largest = F.max_pool2d(features, features.shape[2:])
        logits: Tensor = self.classifier(largest.flatten(1))
        return logits * self.logit_scale


class PooledGroup(nn.Module):
    """Two convolutions, the first pooled: (N, in, H, W) to (N, out, ⌊H/2⌋, ⌊W/2⌋)."""

    def __init__(
        self, in_channels: int, out_channels: int, *, norm_eps: float, norm_momentum: float
    ) -> None:
        super().__init__()
        self.conv1 = identity_conv3x3(in_channels, out_channels)
        self.norm1 = norm_of_scale_1(out_channels, eps=norm_eps, momentum=norm_momentum)
        self.conv2 = identity_conv3x3(out_channels, out_channels)
        self.norm2 = norm_of_scale_1(out_channels, eps=norm_eps, momentum=norm_momentum)

    def forward(self, features: Tensor) -> Tensor:
        """Returns gelu(norm(conv(gelu(norm(pool(conv(features)))))))."""
        hidden = F.gelu(self.norm1(pooled(self.conv1(features))))
        return F.gelu(self.norm2(self.conv2(hidden)))


def pooled(features: Tensor) -> Tensor:
    """Returns the maxima of 2x2 pixels; a map of one row or column is left as it is."""
    return features if min(features.shape[2:]) < 2 else F.max_pool2d(features, 2)


def identity_conv3x3(in_channels: int, out_channels: int) -> nn.Conv2d:
    """Returns a 3x3 convolution whose first filters are the identity, the others torch's fresh."""
    # No bias: the norm after it has one.
    conv = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
    nn.init.dirac_(conv.weight.data[:in_channels])
    return conv


def norm_of_scale_1(channels: int, *, eps: float, momentum: float) -> nn.BatchNorm2d:
    """Returns a batch norm that trains its bias alone."""
    norm = nn.BatchNorm2d(channels, eps=eps, momentum=momentum)
    # A buffer instead of no scale at all: cuDNN's kernels want one. And no frozen parameter, which
    # code that trains parts of a network in turn would unfreeze.
    ones = norm.weight.detach()
    del norm.weight
    norm.register_buffer("weight", ones)
    return norm
