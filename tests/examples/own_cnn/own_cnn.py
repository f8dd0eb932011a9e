"""A network of one's own: `tune-speed search flowers.yaml --plugin own_cnn.py`."""

from itertools import pairwise

from pydantic import Field
from torch import nn

from tune_speed.components import ModelConfig


class OwnCNN(ModelConfig):
    """A small CNN: `blocks` of convolution, batch norm, ReLU and pooling, then a linear layer.

    Source: own.
    """

    width: int = Field(default=16, ge=1)
    """Channels of the first block; each further block has twice as many."""
    blocks: int = Field(default=2, ge=1, le=5)
    """How often the images are halved."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of the features before the last layer that is dropped in training, in [0, 1)."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
        """Returns a fresh network; it takes images of any size."""
        widths = [in_channels, *(self.width * 2**n for n in range(self.blocks))]
        blocks = [block(*pair) for pair in pairwise(widths)]
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(self.dropout))
        return nn.Sequential(*blocks, *head, nn.Linear(widths[-1], num_classes))


def block(in_channels: int, out_channels: int) -> nn.Sequential:
    """Returns layers that take images (N, C, H, W) and give (N, C', H/2, W/2)."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
    )


MODELS = {"own_cnn": OwnCNN}
