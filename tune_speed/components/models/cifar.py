"""Our own networks for small images, which neither timm nor torchvision has."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from tune_speed.components.models.base import Depth, ModelConfig

if TYPE_CHECKING:
    from torch import nn


class ResNet(ModelConfig):
    """The CIFAR ResNet with 6n + 2 layers: 20, 32, 44, 56, 110 … for images of any size.

    Source: He et al., "Deep Residual Learning for Image Recognition", 2016, section 4.2, with
    shortcut A.
    """

    network_name: ClassVar[str] = "CifarResNet"

    depth: Depth = 20
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the features before the classifier that is dropped in training, in [0, 1)."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        from tune_speed.components.models.networks import cifar

        network: nn.Module = getattr(cifar, self.network_name)(
            in_channels=in_channels,
            num_classes=num_classes,
            blocks_per_stage=(self.depth - 2) // 6,
            dropout=self.dropout,
        )
        return network


class PreActResNet(ResNet):
    """The pre-activation CIFAR ResNet with 6n + 2 layers: 269,722 parameters with 20.

    Source: He et al., "Identity Mappings in Deep Residual Networks", 2016, section 4.1 and
    appendix; two convolutions a block and shortcut A, as in the ResNet that it is compared with.
    """

    network_name: ClassVar[str] = "CifarPreActResNet"


class ResNet20(ModelConfig):
    """The CIFAR ResNet with 20 layers: 269,722 parameters at 3 channels and 10 classes.

    Source: He et al., "Deep Residual Learning for Image Recognition", 2016, section 4.2, with
    shortcut A.
    """

    stem: Literal["cifar", "native"] = "cifar"
    """First layer; both words mean this model's own, a 3x3 convolution of stride 1."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the features before the classifier that is dropped in training, in [0, 1)."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        return ResNet(dropout=self.dropout).network(
            in_channels=in_channels, num_classes=num_classes, image_size=image_size
        )


class PlainCNN(ModelConfig):
    """A plain CNN without max-pooling: strided convolutions, 1.4 million parameters.

    Source: Springenberg et al., "Striving for Simplicity: The All Convolutional Net", 2015, table
    1, model C, and section 3.1, with strides in the place of pooling. Deviations: the last 3x3
    convolution is padded too, so that it takes images of any size; `batch_norm` is not theirs.
    """

    width: int = Field(default=96, ge=1, le=4096)
    """Channels before the first stride; twice as many after it."""
    batch_norm: bool = False
    """Normalise after each convolution but the last."""
    input_dropout: float = Field(default=0.2, ge=0, lt=1)
    """Share of the images' values that is dropped in training, in [0, 1)."""
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Share of the features after each strided convolution that is dropped in training, in
    [0, 1)."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        from tune_speed.components.models.networks.cifar import StridedCNN

        fields = self.model_dump(exclude={"weights_file"})
        return StridedCNN(in_channels=in_channels, num_classes=num_classes, **fields)


class SpeedNet(ModelConfig):
    """The CIFAR-10 speed-run's CNN: 7 convolutions, 1,971,640 parameters at 3 channels, 10 classes.

    A 2x2 convolution without padding, of as many filters as whitening fills (8 a channel); then
    three groups of conv3x3 -> max-pool -> batch norm -> GELU -> conv3x3 -> batch norm -> GELU; the
    maximum over the last map's pixels; a linear layer without bias, whose logits are scaled down.
    Each 3x3 convolution begins as the identity on its first channels. Norms train their bias, and
    their scale is fixed at 1. With `speedups.init: whitening`, which is meant for it, the first
    convolution decorrelates the patches; without, its filters are drawn like any others.

    Source: K. Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", arXiv 2404.00498,
    section 3, and KellerJordan/cifar10-airbench (airbench94); after D. Page, "How to train your
    ResNet", 2019. Deviations: the last pooling takes all that is left of a map, 3x3 pixels of an
    image of 32x32, and maps of one pixel are not pooled, so that it takes images from 2x2 on.
    """

    width1: int = Field(default=64, ge=1, le=4096)
    """Channels of the first group's convolutions."""
    width2: int = Field(default=256, ge=1, le=4096)
    """Channels of the second group's convolutions."""
    width3: int = Field(default=256, ge=1, le=4096)
    """Channels of the third group's convolutions, and features of the linear layer."""
    logit_scale: float = Field(default=1 / 9, gt=0, le=100)
    """Factor on the logits, above 0: without it, large rates start with logits that are sure and
    wrong. airbench94 has 1/9; its Muon variant 1/256, with 28 times larger weights before it."""
    norm_eps: float = Field(default=1e-12, ge=0, le=1)
    """Added to the batch norms' variance, 0 or more."""
    norm_momentum: float = Field(default=0.4, gt=0, le=1)
    """Share of a batch's statistics in the running ones, as torch counts it, in (0, 1]: few steps
    leave no time for torch's 0.1."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        from tune_speed.components.models.networks.cifar import CifarSpeedNet

        return CifarSpeedNet(
            in_channels=in_channels,
            num_classes=num_classes,
            widths=(self.width1, self.width2, self.width3),
            logit_scale=self.logit_scale,
            norm_eps=self.norm_eps,
            norm_momentum=self.norm_momentum,
        )
