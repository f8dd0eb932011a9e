"""MobileNets, as timm has them."""

from collections.abc import Mapping
from typing import Literal

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.fields import DropPathRate, DropRate, Pretrained, ResizeTo, Stem
from tune_speed.components.models.published import Published
from tune_speed.components.models.timm_model import Timm

TIMM_NAMES: Mapping[str, str] = {
    "v1": "mobilenetv1_100",
    "v2": "mobilenetv2_100",
    "v3_large": "mobilenetv3_large_100",
    "v3_small": "mobilenetv3_small_100",
    "v3_small_050": "mobilenetv3_small_050",
}
"""Name in timm of each variant."""


class MobileNet(Published, ModelConfig):
    """MobileNet: 0.6 to 4.2 million parameters, depthwise convolutions.

    Source: Howard et al., "MobileNets", 2017 (v1); Sandler et al., "MobileNetV2", 2018 (v2); Howard
    et al., "Searching for MobileNetV3", 2019 (v3); timm's `mobilenet…`. The `cifar` stem is not
    theirs.
    """

    variant: Literal["v1", "v2", "v3_large", "v3_small", "v3_small_050"] = "v2"
    """Version and size; 050 has half as many channels."""
    stem: Stem = "cifar"
    pretrained: Pretrained = False
    resize_to: ResizeTo = None
    drop_rate: DropRate = 0.0
    drop_path_rate: DropPathRate = 0.0

    def published(self) -> Timm:
        """Returns timm's model."""
        return Timm(
            name=TIMM_NAMES[self.variant],
            weights_file=self.weights_file,
            stem=self.stem,
            pretrained=self.pretrained,
            resize_to=self.resize_to,
            drop_rate=self.drop_rate,
            drop_path_rate=self.drop_path_rate,
        )
