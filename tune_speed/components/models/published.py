"""Networks of timm and torchvision that have YAML names of their own."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tune_speed.components.models import base
from tune_speed.components.models.libraries import Timm, TorchVision
from tune_speed.core.records import Normalisation

if TYPE_CHECKING:
    from torch import nn


class Published(base.ModelConfig):
    """A network of a library, whose fields a subclass repeats with defaults of its own."""

    library: ClassVar[type[Timm] | type[TorchVision]]
    architecture: ClassVar[str | Mapping[str, str]]
    """Name in the library: one, or one for each value of the subclass's first field."""

    def __init_subclass__(
        cls,
        *,
        library: type[Timm] | type[TorchVision] = Timm,
        architecture: str | Mapping[str, str] = "",
        **config: Any,
    ) -> None:
        super().__init_subclass__(**config)
        cls.library, cls.architecture = library, architecture

    def published(self) -> Timm | TorchVision:
        fields = dict(self)
        if isinstance(self.architecture, str):
            return self.library(name=self.architecture, **fields)
        first = next(name for name in fields if name not in base.ModelConfig.model_fields)
        return self.library(name=self.architecture[fields.pop(first)], **fields)

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        return self.published().network(
            in_channels=in_channels, num_classes=num_classes, image_size=image_size
        )

    def build(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        return self.published().build(
            in_channels=in_channels, num_classes=num_classes, image_size=image_size
        )

    def published_normalisation(self) -> Normalisation | None:
        return self.published().published_normalisation()


class PublishedCNN(Published):
    """One whose stem can be fit to small images."""

    stem: base.Stem = "cifar"
    pretrained: base.Pretrained = False
    resize_to: base.ResizeTo = None
    drop_rate: base.DropRate = 0.0


class AlexNet(PublishedCNN, library=TorchVision, architecture="alexnet"):
    """AlexNet: 57 million parameters, most in two hidden layers of the classifier.

    Source: Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014;
    torchvision's `alexnet`. The `cifar` stem is not his; the native one takes images of 63 pixels
    and more.
    """

    drop_rate: base.DropRate = 0.5


class DenseNet121(PublishedCNN, architecture="densenet121"):
    """DenseNet-121: 7.0 million parameters; each layer sees the outputs of all before it.

    Source: Huang et al., "Densely Connected Convolutional Networks", 2017, table 1; timm's
    `densenet121`. The `cifar` stem is not theirs.
    """


class EfficientNetB0(PublishedCNN, architecture="efficientnet_b0"):
    """EfficientNet-B0: 4.0 million parameters, depthwise convolutions with attention to channels.

    Source: Tan & Le, "EfficientNet", 2019, table 1; timm's `efficientnet_b0`. Dropout of 0.2 is
    theirs, where timm's own default is 0; their drop path of 0.2 is left to `drop_path_rate`. The
    `cifar` stem is not theirs.
    """

    drop_rate: base.DropRate = 0.2
    drop_path_rate: base.DropPathRate = 0.0


# By our own list: whether timm has weights is known only after importing it, and torch with it.
UNTRAINED = ("small_resnet50d_s16",)

HYBRIDS: Mapping[str, str] = {
    "tiny_r_s16_p8": "vit_tiny_r_s16_p8_224",
    "small_resnet50d_s16": "vit_small_resnet50d_s16_224",
    "base_r50_s16": "vit_base_r50_s16_224",
}


class Hybrid(Published, architecture=HYBRIDS):
    """Hybrid of CNN and vision transformer: 5.4 to 98 million parameters.

    Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, section 3.1 (base_r50_s16);
    Steiner et al., "How to train your ViT?", 2021 (tiny_r_s16_p8); timm's `vit_…_224`.
    """

    variant: Literal["tiny_r_s16_p8", "small_resnet50d_s16", "base_r50_s16"] = "tiny_r_s16_p8"
    """The transformer's size and its CNN: the first layers of a ResNet, which shrink an image
    4-fold; or a ResNet-50, 16-fold."""
    patch_size: int = Field(default=1, ge=1)
    """Side of a patch [cells of the CNN's feature map]; published: 8 for tiny_r_s16_p8, else 1."""
    pretrained: base.Pretrained = False
    resize_to: base.ResizeTo = None
    drop_rate: base.DropRate = 0.0
    drop_path_rate: base.DropPathRate = 0.0

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if self.pretrained and self.variant in UNTRAINED:
            raise ValueError(f"`pretrained` must be false: timm has no weights for {self.variant}")
        return self


MOBILENETS: Mapping[str, str] = {
    "v1": "mobilenetv1_100",
    "v2": "mobilenetv2_100",
    "v3_large": "mobilenetv3_large_100",
    "v3_small": "mobilenetv3_small_100",
    "v3_small_050": "mobilenetv3_small_050",
}


class MobileNet(Published, architecture=MOBILENETS):
    """MobileNet: 0.6 to 4.2 million parameters, depthwise convolutions.

    Source: Howard et al., "MobileNets", 2017 (v1); Sandler et al., "MobileNetV2", 2018 (v2); Howard
    et al., "Searching for MobileNetV3", 2019 (v3); timm's `mobilenet…`. The `cifar` stem is not
    theirs.
    """

    variant: Literal["v1", "v2", "v3_large", "v3_small", "v3_small_050"] = "v2"
    """Version and size; 050 has half as many channels."""
    stem: base.Stem = "cifar"
    pretrained: base.Pretrained = False
    resize_to: base.ResizeTo = None
    drop_rate: base.DropRate = 0.0
    drop_path_rate: base.DropPathRate = 0.0


class ResNet18(PublishedCNN, architecture="resnet18"):
    """ResNet-18: 11.2 million parameters, two convolutions a block.

    Source: He et al., "Deep Residual Learning for Image Recognition", 2016, table 1; timm's
    `resnet18`. The `cifar` stem is not theirs.
    """

    drop_path_rate: base.DropPathRate = 0.0


class ResNet50(PublishedCNN, architecture="resnet50"):
    """ResNet-50: 23.5 million parameters, three convolutions a block.

    Source: He et al., "Deep Residual Learning for Image Recognition", 2016, table 1; timm's
    `resnet50`. Its stride on the 3x3 convolution, and the `cifar` stem, are not theirs.
    """

    drop_path_rate: base.DropPathRate = 0.0


SQUEEZENETS = {"1_0": "squeezenet1_0", "1_1": "squeezenet1_1"}


class SqueezeNet(Published, library=TorchVision, architecture=SQUEEZENETS):
    """SqueezeNet: 0.7 million parameters, without batch norm.

    Source: Iandola et al., "SqueezeNet", 2016, table 1 (1_0), and its authors' later release (1_1);
    torchvision's `squeezenet1_0` and `squeezenet1_1`. The `cifar` stem is not theirs.
    """

    version: Literal["1_0", "1_1"] = "1_1"
    """1_1 takes 2.4 times fewer operations than 1_0 at 224 pixels, with the native stem."""
    stem: base.Stem = "cifar"
    pretrained: base.Pretrained = False
    resize_to: base.ResizeTo = None
    drop_rate: base.DropRate = 0.5


class VGG(Published):
    """One that takes images of 32 pixels and more."""

    pretrained: base.Pretrained = False
    resize_to: base.ResizeTo = None
    drop_rate: base.DropRate = 0.5


class VGG16BN(VGG, library=TorchVision, architecture="vgg16_bn"):
    """VGG-16 with batch norm: 134 million parameters, most in two hidden layers of the classifier.

    Images of 32 pixels, the smallest that it takes, end as one cell, which is repeated for the
    classifier.

    Source: Simonyan & Zisserman, "Very Deep Convolutional Networks", 2015, table 1 (D), dropout
    by section 3.1; torchvision's `vgg16_bn`; batch norm is not theirs.
    """


class VGG19(VGG, library=TorchVision, architecture="vgg19"):
    """VGG-19: 140 million parameters, most in two hidden layers of the classifier.

    Images of 32 pixels, the smallest that it takes, end as one cell, which is repeated for the
    classifier.

    Source: Simonyan & Zisserman, "Very Deep Convolutional Networks", 2015, table 1 (E), dropout
    by section 3.1; torchvision's `vgg19`.
    """


class VGG19BN(VGG, library=TorchVision, architecture="vgg19_bn"):
    """VGG-19 with batch norm: 140 million parameters, most in two hidden layers of the classifier.

    Images of 32 pixels, the smallest that it takes, end as one cell, which is repeated for the
    classifier.

    Source: Simonyan & Zisserman, "Very Deep Convolutional Networks", 2015, table 1 (E), dropout
    by section 3.1; torchvision's `vgg19_bn`; batch norm is not theirs.
    """


VITS: Mapping[str, str] = {
    "tiny": "vit_tiny_patch16_224",
    "small": "vit_small_patch16_224",
    "base": "vit_base_patch16_224",
    "large": "vit_large_patch16_224",
    "huge": "vit_huge_patch14_224",
}
"""Name in timm of each size; its patches and images are replaced by the fields here."""


class ViT(Published, architecture=VITS):
    """Vision transformer: 5.4 (tiny) to 630 (huge) million parameters.

    Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, table 1 (base, large, huge);
    Touvron et al., "Training data-efficient image transformers", 2021, table 1 (tiny, small);
    timm's `vit_…_patch16_224`. Published: `resize_to: 224, patch_size: 16` (huge: 14).
    """

    size: Literal["tiny", "small", "base", "large", "huge"] = "tiny"
    """Depth and width: 5.5, 21.7, 85.8, 303 and 631 million parameters as published."""
    patch_size: int = Field(default=4, ge=1)
    """Side of a patch [pixels]; half of it makes four times the tokens. Where it does not divide
    the image's side, what is left over at the right and at the bottom is not seen."""
    pretrained: base.Pretrained = False
    resize_to: base.ResizeTo = None
    drop_rate: base.DropRate = 0.0
    drop_path_rate: base.DropPathRate = 0.0
