"""The CIFAR ResNets of He et al. (2016), which neither timm nor torchvision has."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.fields import Depth, blocks_per_stage

if TYPE_CHECKING:
    from torch import nn


class ResNet(ModelConfig):
    """The CIFAR ResNet with 6n + 2 layers: 20, 32, 44, 56, 110 … for images of any size.

    Source: He et al., "Deep Residual Learning for Image Recognition", 2016, section 4.2, with
    shortcut A.
    """

    depth: Depth = 20
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the features before the classifier that is dropped in training, in [0, 1)."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        """Returns a fresh network; it takes images of any size."""
        from tune_speed.components.models.networks.cifar_resnet import CifarResNet

        return CifarResNet(
            in_channels=in_channels,
            num_classes=num_classes,
            blocks_per_stage=blocks_per_stage(self.depth),
            dropout=self.dropout,
        )


class PreActResNet(ResNet):
    """The pre-activation CIFAR ResNet with 6n + 2 layers: 269,722 parameters with 20.

    Source: He et al., "Identity Mappings in Deep Residual Networks", 2016, section 4.1 and
    appendix; two convolutions a block and shortcut A, as in the ResNet that it is compared with.
    """

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        """Returns a fresh network; it takes images of any size."""
        from tune_speed.components.models.networks.cifar_resnet import CifarPreActResNet

        return CifarPreActResNet(
            in_channels=in_channels,
            num_classes=num_classes,
            blocks_per_stage=blocks_per_stage(self.depth),
            dropout=self.dropout,
        )


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
        """Returns a fresh network; it takes images of any size."""
        from tune_speed.components.models.networks.cifar_resnet import CifarResNet

        return CifarResNet(
            in_channels=in_channels,
            num_classes=num_classes,
            blocks_per_stage=3,
            dropout=self.dropout,
        )
