"""ResNet-18, as timm has it."""

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.fields import DropPathRate, DropRate, Pretrained, ResizeTo, Stem
from tune_speed.components.models.published import Published
from tune_speed.components.models.timm_model import Timm


class ResNet18(Published, ModelConfig):
    """ResNet-18: 11.2 million parameters, two convolutions a block.

    Source: He et al., "Deep Residual Learning for Image Recognition", 2016, table 1; timm's
    `resnet18`. The `cifar` stem is not theirs.
    """

    stem: Stem = "cifar"
    pretrained: Pretrained = False
    resize_to: ResizeTo = None
    drop_rate: DropRate = 0.0
    drop_path_rate: DropPathRate = 0.0

    def published(self) -> Timm:
        """Returns timm's model."""
        return Timm(
            name="resnet18",
            weights_file=self.weights_file,
            stem=self.stem,
            pretrained=self.pretrained,
            resize_to=self.resize_to,
            drop_rate=self.drop_rate,
            drop_path_rate=self.drop_path_rate,
        )
