"""DenseNet-121, as timm has it."""

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.fields import DropRate, Pretrained, ResizeTo, Stem
from tune_speed.components.models.published import Published
from tune_speed.components.models.timm_model import Timm


class DenseNet121(Published, ModelConfig):
    """DenseNet-121: 7.0 million parameters; each layer sees the outputs of all before it.

    Source: Huang et al., "Densely Connected Convolutional Networks", 2017, table 1; timm's
    `densenet121`. The `cifar` stem is not theirs.
    """

    stem: Stem = "cifar"
    pretrained: Pretrained = False
    resize_to: ResizeTo = None
    drop_rate: DropRate = 0.0

    def published(self) -> Timm:
        """Returns timm's model."""
        return Timm(
            name="densenet121",
            weights_file=self.weights_file,
            stem=self.stem,
            pretrained=self.pretrained,
            resize_to=self.resize_to,
            drop_rate=self.drop_rate,
        )
