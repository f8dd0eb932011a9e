"""AlexNet, as torchvision has it."""

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.fields import DropRate, Pretrained, ResizeTo, Stem
from tune_speed.components.models.published import Published
from tune_speed.components.models.torchvision_model import TorchVision


class AlexNet(Published, ModelConfig):
    """AlexNet: 57 million parameters, most in two hidden layers of the classifier.

    Source: Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014;
    torchvision's `alexnet`. The `cifar` stem is not his; the native one takes images of 63 pixels
    and more.
    """

    stem: Stem = "cifar"
    pretrained: Pretrained = False
    resize_to: ResizeTo = None
    drop_rate: DropRate = 0.5

    def published(self) -> TorchVision:
        """Returns torchvision's model."""
        return TorchVision(
            name="alexnet",
            weights_file=self.weights_file,
            stem=self.stem,
            pretrained=self.pretrained,
            resize_to=self.resize_to,
            drop_rate=self.drop_rate,
        )
