"""Vision transformers, as timm has them."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.fields import DropPathRate, DropRate, Pretrained, ResizeTo
from tune_speed.components.models.published import Published
from tune_speed.components.models.timm_model import Timm

TIMM_NAMES: Mapping[str, str] = {
    "tiny": "vit_tiny_patch16_224",
    "small": "vit_small_patch16_224",
    "base": "vit_base_patch16_224",
    "large": "vit_large_patch16_224",
    "huge": "vit_huge_patch14_224",
}
"""Name in timm of each size; its patches and images are replaced by the fields here."""


class ViT(Published, ModelConfig):
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
    pretrained: Pretrained = False
    resize_to: ResizeTo = None
    drop_rate: DropRate = 0.0
    drop_path_rate: DropPathRate = 0.0

    def published(self) -> Timm:
        """Returns timm's model."""
        return Timm(
            name=TIMM_NAMES[self.size],
            weights_file=self.weights_file,
            patch_size=self.patch_size,
            pretrained=self.pretrained,
            resize_to=self.resize_to,
            drop_rate=self.drop_rate,
            drop_path_rate=self.drop_path_rate,
        )
