"""Vision transformers on the features of a CNN, as timm has them."""

from typing import Literal, Self

from pydantic import Field, model_validator

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.fields import DropPathRate, DropRate, Pretrained, ResizeTo
from tune_speed.components.models.published import Published
from tune_speed.components.models.timm_model import Timm

UNTRAINED = ("small_resnet50d_s16",)
"""Variants without published weights."""


class Hybrid(Published, ModelConfig):
    """Hybrid of CNN and vision transformer: 5.4 to 98 million parameters.

    Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, section 3.1 (base_r50_s16);
    Steiner et al., "How to train your ViT?", 2021 (tiny_r_s16_p8); timm's `vit_…_224`.
    """

    variant: Literal["tiny_r_s16_p8", "small_resnet50d_s16", "base_r50_s16"] = "tiny_r_s16_p8"
    """The transformer's size and its CNN: the first layers of a ResNet, which shrink an image
    4-fold; or a ResNet-50, 16-fold."""
    patch_size: int = Field(default=1, ge=1)
    """Side of a patch [cells of the CNN's feature map]; published: 8 for tiny_r_s16_p8, else 1."""
    pretrained: Pretrained = False
    resize_to: ResizeTo = None
    drop_rate: DropRate = 0.0
    drop_path_rate: DropPathRate = 0.0

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if self.pretrained and self.variant in UNTRAINED:
            raise ValueError(f"`pretrained` must be false: timm has no weights for {self.variant}")
        return self

    def published(self) -> Timm:
        """Returns timm's model."""
        return Timm(
            name=f"vit_{self.variant}_224",
            weights_file=self.weights_file,
            patch_size=self.patch_size,
            pretrained=self.pretrained,
            resize_to=self.resize_to,
            drop_rate=self.drop_rate,
            drop_path_rate=self.drop_path_rate,
        )
