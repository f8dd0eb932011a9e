"""EfficientNet-B0, as timm has it."""

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.fields import DropPathRate, DropRate, Pretrained, ResizeTo, Stem
from tune_speed.components.models.published import Published
from tune_speed.components.models.timm_model import Timm


class EfficientNetB0(Published, ModelConfig):
    """EfficientNet-B0: 4.0 million parameters, depthwise convolutions with attention to channels.

    Source: Tan & Le, "EfficientNet", 2019, table 1; timm's `efficientnet_b0`. Dropout of 0.2 is
    theirs, where timm's own default is 0; their drop path of 0.2 is left to `drop_path_rate`. The
    `cifar` stem is not theirs.
    """

    stem: Stem = "cifar"
    pretrained: Pretrained = False
    resize_to: ResizeTo = None
    drop_rate: DropRate = 0.2
    drop_path_rate: DropPathRate = 0.0

    def published(self) -> Timm:
        """Returns timm's model."""
        return Timm(
            name="efficientnet_b0",
            weights_file=self.weights_file,
            stem=self.stem,
            pretrained=self.pretrained,
            resize_to=self.resize_to,
            drop_rate=self.drop_rate,
            drop_path_rate=self.drop_path_rate,
        )
