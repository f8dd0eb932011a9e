"""SqueezeNet, as torchvision has it."""

from typing import Literal

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.fields import DropRate, Pretrained, ResizeTo, Stem
from tune_speed.components.models.published import Published
from tune_speed.components.models.torchvision_model import TorchVision


class SqueezeNet(Published, ModelConfig):
    """SqueezeNet: 0.7 million parameters, without batch norm.

    Source: Iandola et al., "SqueezeNet", 2016, table 1 (1_0), and its authors' later release (1_1);
    torchvision's `squeezenet1_0` and `squeezenet1_1`. The `cifar` stem is not theirs.
    """

    version: Literal["1_0", "1_1"] = "1_1"
    """1_1 takes 2.4 times fewer operations than 1_0 at 224 pixels, with the native stem."""
    stem: Stem = "cifar"
    pretrained: Pretrained = False
    resize_to: ResizeTo = None
    drop_rate: DropRate = 0.5

    def published(self) -> TorchVision:
        """Returns torchvision's model."""
        return TorchVision(
            name=f"squeezenet{self.version}",
            weights_file=self.weights_file,
            stem=self.stem,
            pretrained=self.pretrained,
            resize_to=self.resize_to,
            drop_rate=self.drop_rate,
        )
