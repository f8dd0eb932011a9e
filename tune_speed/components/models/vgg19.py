"""VGG-19, as torchvision has it."""

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.fields import DropRate, Pretrained, ResizeTo
from tune_speed.components.models.published import Published
from tune_speed.components.models.torchvision_model import TorchVision


class VGG19(Published, ModelConfig):
    """VGG-19: 140 million parameters, most in two hidden layers of the classifier.

    Images of 32 pixels, the smallest that it takes, end as one cell, which is repeated for the
    classifier.

    Source: Simonyan & Zisserman, "Very Deep Convolutional Networks", 2015, table 1 (E), dropout
    by section 3.1; torchvision's `vgg19`.
    """

    pretrained: Pretrained = False
    resize_to: ResizeTo = None
    drop_rate: DropRate = 0.5

    def published(self) -> TorchVision:
        """Returns torchvision's model."""
        return TorchVision(
            name="vgg19",
            weights_file=self.weights_file,
            pretrained=self.pretrained,
            resize_to=self.resize_to,
            drop_rate=self.drop_rate,
        )
