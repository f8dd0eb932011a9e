"""Residual networks for small images: three stages of 16, 32 and 64 channels.

Source: He et al., "Deep Residual Learning for Image Recognition", 2016, section 4.2, with their
shortcut A: it has no parameters, subsamples by taking every second pixel and fills the new
channels with zeros. They do not say where the zeros go; here they surround the old channels.

The pre-activation networks, where norm and ReLU come before convolutions, are those of He et al.,
"Identity Mappings in Deep Residual Networks", 2016, figure 4(e). As in its appendix, the first norm
and ReLU follow the first convolution, before the paths split; where a block changes the dimensions,
branch and shortcut share its first norm and ReLU; and the last block's sum has a norm and a ReLU of
its own.
"""

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (16, 32, 64)
"""Channels of the three stages."""


class CifarResNet(nn.Module):
    """Images (N, C, H, W) to logits (N, num_classes), with 6 * blocks_per_stage + 2 layers."""

    def __init__(
        self, *, in_channels: int, num_classes: int, blocks_per_stage: int, dropout: float
    ) -> None:
        super().__init__()
        self.conv = conv3x3(in_channels, WIDTHS[0])
        self.norm = nn.BatchNorm2d(WIDTHS[0])
        self.blocks = nn.Sequential(*residual_blocks(blocks_per_stage))
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(WIDTHS[-1], num_classes)
        self.apply(init_conv)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits (N, num_classes)."""
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
        """Returns join(branch, shortcut)."""
        return self.join(self.branch(features), self.shortcut(features))

    def branch(self, features: Tensor) -> Tensor:
        """Returns norm(conv(relu(norm(conv(features)))))."""
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
    """Images (N, C, H, W) to logits (N, num_classes), with 6 * blocks_per_stage + 2 layers."""

    def __init__(
        self, *, in_channels: int, num_classes: int, blocks_per_stage: int, dropout: float
    ) -> None:
        super().__init__()
        self.conv = conv3x3(in_channels, WIDTHS[0])
        self.first_norm = nn.BatchNorm2d(WIDTHS[0])
        self.blocks = nn.Sequential(*preact_blocks(blocks_per_stage))
        self.last_norm = nn.BatchNorm2d(WIDTHS[-1])
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(WIDTHS[-1], num_classes)
        self.apply(init_conv)

    def forward(self, images: Tensor) -> Tensor:
        """Returns the logits (N, num_classes)."""
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
        """Returns conv(relu(norm(conv(relu(norm(features))))))."""
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


def residual_blocks(blocks_per_stage: int) -> list[BasicBlock]:
    """Returns the blocks of all stages."""
    return [
        BasicBlock(in_channels, out_channels, stride=stride)
        for in_channels, out_channels, stride in block_shapes(blocks_per_stage)
    ]


def preact_blocks(blocks_per_stage: int) -> list[PreActBlock]:
    """Returns the blocks of all stages; the first takes the stem's activated features."""
    return [
        PreActBlock(in_channels, out_channels, stride=stride, is_activated=number == 0)
        for number, (in_channels, out_channels, stride) in enumerate(block_shapes(blocks_per_stage))
    ]


def block_shapes(blocks_per_stage: int) -> Iterator[tuple[int, int, int]]:
    """Yields channels in and out and the stride of each block: 2 where a later stage begins."""
    in_channels = WIDTHS[0]
    for width in WIDTHS:
        for _ in range(blocks_per_stage):
            yield in_channels, width, 1 if width == in_channels else 2
            in_channels = width


def conv3x3(in_channels: int, out_channels: int, *, stride: int = 1) -> nn.Conv2d:
    """Returns a 3x3 convolution without bias."""
    # The norm after it has one.
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)


def init_conv(module: nn.Module) -> None:
    """Draws the weights of a convolution with std sqrt(2 / fan_out), fit for ReLU."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
