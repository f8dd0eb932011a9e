"""Networks for small images; `components.models.cifar` has their sources."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (16, 32, 64)


class CifarResNet(nn.Module):
    """Images (N, C, H, W) to logits (N, num_classes), with 6 * blocks_per_stage + 2 layers.

    Shortcut A has no parameters, subsamples by taking every second pixel and fills the new channels
    with zeros. He et al. do not say where they go; here they surround the old channels.
    """

    def __init__(
        self, *, in_channels: int, num_classes: int, blocks_per_stage: int, dropout: float
    ) -> None:
        super().__init__()
        self.conv = conv3x3(in_channels, WIDTHS[0])
        self.norm = nn.BatchNorm2d(WIDTHS[0])
        self.blocks = nn.Sequential(
            *(
                BasicBlock(inside, outside, stride=stride)
                for inside, outside, stride in block_shapes(blocks_per_stage)
            )
        )
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(WIDTHS[-1], num_classes)
        self.apply(init_conv)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)))

    def stem(self, images: Tensor) -> Tensor:
        """Returns the features (N, 16, H, W) that the first block takes."""
        return F.relu(self.norm(self.conv(images)), inplace=True)

    def head(self, features: Tensor) -> Tensor:
        """Returns the logits (N, num_classes) for the last block's features (N, 64, h, w)."""
        logits: Tensor = self.classifier(self.dropout(features.mean(dim=(2, 3))))
        return logits


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: (N, in, H, W) to (N, out, H/stride, W/stride)."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.new_channels = out_channels - in_channels
        self.conv1 = conv3x3(in_channels, out_channels, stride=stride)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv3x3(out_channels, out_channels)
        self.norm2 = nn.BatchNorm2d(out_channels)

    def forward(self, features: Tensor) -> Tensor:
        return self.join(self.branch(features), self.shortcut(features))

    def branch(self, features: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(features)), inplace=True)
        output: Tensor = self.norm2(self.conv2(hidden))
        return output

    def shortcut(self, features: Tensor) -> Tensor:
        """Returns `features` in the shape of the branch."""
        return subsample(features, stride=self.stride, new_channels=self.new_channels)

    def join(self, branch: Tensor, shortcut: Tensor) -> Tensor:
        """Returns relu(branch + shortcut) as a new tensor; `branch` may be a number."""
        # In place on the sum, which is new; the shortcut may be the block's input itself.
        return F.relu(branch + shortcut, inplace=True)


class CifarPreActResNet(nn.Module):
    """The same with norm and ReLU before convolutions.

    Source: He et al., "Identity Mappings in Deep Residual Networks", 2016, figure 4(e). As in its
    appendix, the first norm and ReLU follow the first convolution, before the paths split; where a
    block changes the dimensions, branch and shortcut share its first norm and ReLU; and the last
    block's sum has a norm and a ReLU of its own.
    """

    def __init__(
        self, *, in_channels: int, num_classes: int, blocks_per_stage: int, dropout: float
    ) -> None:
        super().__init__()
        self.conv = conv3x3(in_channels, WIDTHS[0])
        self.first_norm = nn.BatchNorm2d(WIDTHS[0])
        self.blocks = nn.Sequential(
            *(
                PreActBlock(inside, outside, stride=stride, is_activated=number == 0)
                for number, (inside, outside, stride) in enumerate(block_shapes(blocks_per_stage))
            )
        )
        self.last_norm = nn.BatchNorm2d(WIDTHS[-1])
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(WIDTHS[-1], num_classes)
        self.apply(init_conv)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)))

    def stem(self, images: Tensor) -> Tensor:
        """Returns the features (N, 16, H, W) that the first block takes, already activated."""
        return F.relu(self.first_norm(self.conv(images)), inplace=True)

    def head(self, features: Tensor) -> Tensor:
        """Returns the logits (N, num_classes) for the last block's features (N, 64, h, w)."""
        active = F.relu(self.last_norm(features), inplace=True)
        logits: Tensor = self.classifier(self.dropout(active.mean(dim=(2, 3))))
        return logits


class PreActBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: (N, in, H, W) to (N, out, H/stride, W/stride).

    In training, call it, or `shortcut` alone to skip the branch: `branch` and `shortcut` of a
    block that changes dimensions each count the batch in the statistics of the shared norm.
    """

    def __init__(
        self, in_channels: int, out_channels: int, *, stride: int, is_activated: bool
    ) -> None:
        """Args: is_activated: the features that it takes have norm and ReLU behind them."""
        super().__init__()
        self.stride = stride
        self.new_channels = out_channels - in_channels
        self.changes_shape = stride != 1 or self.new_channels != 0
        norm_relu = nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU(inplace=True))
        self.activation = nn.Identity() if is_activated else norm_relu
        self.conv1 = conv3x3(in_channels, out_channels, stride=stride)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv3x3(out_channels, out_channels)

    def forward(self, features: Tensor) -> Tensor:
        """Returns join(branch, shortcut); the first norm and ReLU are computed once."""
        active = self.activation(features)
        shortcut = self._subsampled(active) if self.changes_shape else features
        return self.join(self._convolved(active), shortcut)

    def branch(self, features: Tensor) -> Tensor:
        return self._convolved(self.activation(features))

    def shortcut(self, features: Tensor) -> Tensor:
        """Returns the features as they are, or relu(norm(features)) in the branch's shape."""
        return self._subsampled(self.activation(features)) if self.changes_shape else features

    def join(self, branch: Tensor, shortcut: Tensor) -> Tensor:
        """Returns branch + shortcut, a new tensor; `branch` may be a number."""
        return branch + shortcut

    def _convolved(self, active: Tensor) -> Tensor:
        hidden = F.relu(self.norm2(self.conv1(active)), inplace=True)
        output: Tensor = self.conv2(hidden)
        return output

    def _subsampled(self, active: Tensor) -> Tensor:
        return subsample(active, stride=self.stride, new_channels=self.new_channels)


def subsample(features: Tensor, *, stride: int, new_channels: int) -> Tensor:
    """Returns `features` (N, C, H, W) with every stride-th pixel and zeros as new channels."""
    if stride == 1 and new_channels == 0:
        return features
    before = new_channels // 2
    padding = (0, 0, 0, 0, before, new_channels - before)
    return F.pad(features[:, :, ::stride, ::stride], padding)


def block_shapes(blocks_per_stage: int) -> Iterator[tuple[int, int, int]]:
    in_channels = WIDTHS[0]
    for width in WIDTHS:
        for _ in range(blocks_per_stage):
            yield in_channels, width, 1 if width == in_channels else 2
            in_channels = width


def conv3x3(in_channels: int, out_channels: int, *, stride: int = 1) -> nn.Conv2d:
    # The norm after it has one.
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)


def init_conv(module: nn.Module) -> None:
    """Draws the weights of a convolution with std sqrt(2 / fan_out), fit for ReLU."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class StridedCNN(nn.Module):
    """Images (N, C, H, W) to logits (N, num_classes), with nine convolutions."""

    def __init__(
        self,
        *,
        in_channels: int,
        num_classes: int,
        width: int,
        batch_norm: bool,
        input_dropout: float,
        dropout: float,
    ) -> None:
        super().__init__()
        self.input_dropout = nn.Dropout(input_dropout)
        self.first = layer(in_channels, width, batch_norm=batch_norm)
        wide = 2 * width
        self.blocks = nn.Sequential(
            layer(width, width, batch_norm=batch_norm),
            layer(width, width, batch_norm=batch_norm, stride=2, dropout=dropout),
            layer(width, wide, batch_norm=batch_norm),
            layer(wide, wide, batch_norm=batch_norm),
            layer(wide, wide, batch_norm=batch_norm, stride=2, dropout=dropout),
            layer(wide, wide, batch_norm=batch_norm),
            layer(wide, wide, batch_norm=batch_norm, kernel_size=1),
        )
        self.classifier = nn.Conv2d(wide, num_classes, 1)
        self.apply(_init_conv)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)))

    def stem(self, images: Tensor) -> Tensor:
        """Returns the first convolution's features (N, width, H, W)."""
        features: Tensor = self.first(self.input_dropout(images))
        return features

    def head(self, features: Tensor) -> Tensor:
        """Returns the logits (N, num_classes), means over pixels of features (N, 2 width, h, w)."""
        logits: Tensor = self.classifier(features).mean(dim=(2, 3))
        return logits


def layer(
    in_channels: int,
    out_channels: int,
    *,
    batch_norm: bool,
    kernel_size: int = 3,
    stride: int = 1,
    dropout: float = 0.0,
) -> nn.Sequential:
    conv = nn.Conv2d(
        in_channels,
        out_channels,
        kernel_size,
        stride=stride,
        padding=kernel_size // 2,
        bias=not batch_norm,
    )
    norm = [nn.BatchNorm2d(out_channels)] if batch_norm else []
    drop = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(conv, *norm, nn.ReLU(inplace=True), *drop)


def _init_conv(module: nn.Module) -> None:
    # By fan-in: the classifier has so few outputs that by fan-out its logits would be huge.
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


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
        hidden = F.gelu(self.norm1(pooled(self.conv1(features))))
        return F.gelu(self.norm2(self.conv2(hidden)))


def pooled(features: Tensor) -> Tensor:
    return features if min(features.shape[2:]) < 2 else F.max_pool2d(features, 2)


def identity_conv3x3(in_channels: int, out_channels: int) -> nn.Conv2d:
    # No bias: the norm after it has one.
    conv = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
    nn.init.dirac_(conv.weight.data[:in_channels])
    return conv


def norm_of_scale_1(channels: int, *, eps: float, momentum: float) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, eps=eps, momentum=momentum)
    # A buffer instead of no scale at all: cuDNN's kernels want one. And no frozen parameter, which
    # code that trains parts of a network in turn would unfreeze.
    ones = norm.weight.detach()
    del norm.weight
    norm.register_buffer("weight", ones)
    return norm
