"""Networks of the libraries that stand in the table under names of their own."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from tune_speed.components.models.base import ModelConfig

if TYPE_CHECKING:
    from torch import nn


class Published(ABC):
    """Gives a `ModelConfig` the networks of a library's one; it comes before it in the bases."""

    @abstractmethod
    def published(self) -> ModelConfig:
        """Returns the library's model with these fields."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        """Returns the library's network with fresh weights."""
        return self.published().network(
            in_channels=in_channels, num_classes=num_classes, image_size=image_size
        )

    def build(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        """Returns the library's network with fresh weights, the published ones or the file's.

        Raises:
            DataError: if the published weights cannot be fetched, or weights do not fit.
        """
        return self.published().build(
            in_channels=in_channels, num_classes=num_classes, image_size=image_size
        )
