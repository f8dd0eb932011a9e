"""A CNN of convolutions alone: neither max-pooling nor shortcuts nor dense layers."""

from typing import TYPE_CHECKING

from pydantic import Field

from tune_speed.components.models.base import ModelConfig

if TYPE_CHECKING:
    from torch import nn


class PlainCNN(ModelConfig):
    """A plain CNN without max-pooling: strided convolutions, 1.4 million parameters.

    Source: Springenberg et al., "Striving for Simplicity: The All Convolutional Net", 2015, table
    1, model C, and section 3.1, with strides in the place of pooling. Deviations: the last 3x3
    convolution is padded too, so that it takes images of any size; `batch_norm` is not theirs.
    """

    width: int = Field(default=96, ge=1, le=4096)
    """Channels before the first stride; twice as many after it."""
    batch_norm: bool = False
    """Normalise after each convolution but the last."""
    input_dropout: float = Field(default=0.2, ge=0, lt=1)
    """Share of the images' values that is dropped in training, in [0, 1)."""
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Share of the features after each strided convolution that is dropped in training, in
    [0, 1)."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        """Returns a fresh network; it takes images of any size."""
        from tune_speed.components.models.networks.strided_cnn import StridedCNN

        fields = self.model_dump(exclude={"weights_file"})
        return StridedCNN(in_channels=in_channels, num_classes=num_classes, **fields)
