"""What every model offers."""

import os
from abc import abstractmethod
from typing import TYPE_CHECKING, Self

from tune_speed.core.config import Config
from tune_speed.core.errors import ConfigError, first_line

if TYPE_CHECKING:
    from torch import nn


class ModelConfig(Config):
    """A classifier: images (N, C, H, W) in, logits (N, num_classes) out."""

    weights_file: str | None = None
    """Start from this file: a state dict of the same model, written by torch.save. The classifier
    may be of another class count; then it starts fresh."""

    def located(self) -> Self:
        """Returns the same with absolute paths, which mean the same in every process."""
        if self.weights_file is None:
            return self
        return self.model_copy(update={"weights_file": os.path.abspath(self.weights_file)})

    @abstractmethod
    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        """Returns the network with fresh weights, on torch's default device, in training mode.

        Raises: ConfigError if this model cannot be had in that form.
        """

    def build(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        """Returns the network with the weights that training starts from: fresh, or the file's.

        Args:
            in_channels: channels C of an image.
            num_classes: classes, the second dimension of the logits.
            image_size: height and width of an image [pixels].

        Raises: ConfigError if this model cannot be had in that form; DataError if its weights
            cannot be fetched or read.
        """
        network = self.network(
            in_channels=in_channels, num_classes=num_classes, image_size=image_size
        )
        if self.weights_file is None:
            return network
        from tune_speed.components.models.networks.weights import load_weights, read_weights

        file, weights = self.weights_file, read_weights(self.weights_file)
        return load_weights(network, weights, num_classes=num_classes, origin=file)

    def check(self, *, in_channels: int, num_classes: int, image_size: int) -> None:
        """Runs a fresh network once, on torch's meta device: shapes alone, no memory, no weights.

        The few networks that compute while they are built are run on the CPU instead.

        Raises: ConfigError if the model cannot be had in that form or cannot take such images.
        """
        size = (2, in_channels, image_size, image_size)
        try:
            output_shape = self._output_shape(size, num_classes)
        except ConfigError:
            raise
        # Libraries refuse images by RuntimeError, ValueError, AssertionError and others.
        except Exception as error:
            raise self._refusal(size, f"fails with {first_line(error)}") from error
        if output_shape != (2, num_classes):
            raise self._refusal(size, f"gives {output_shape} instead of logits (2, {num_classes})")

    def _output_shape(self, size: tuple[int, int, int, int], num_classes: int) -> tuple[int, ...]:
        import torch

        def shape_on(device: str) -> tuple[int, ...]:
            with torch.device(device), torch.no_grad():
                network = self.network(
                    in_channels=size[1], num_classes=num_classes, image_size=size[2]
                )
                return tuple(network.eval()(torch.zeros(size)).shape)

        try:
            return shape_on("meta")
        except NotImplementedError:
            with torch.random.fork_rng(devices=[]):
                return shape_on("cpu")

    def _refusal(self, size: tuple[int, ...], reason: str) -> ConfigError:
        all_fields, fields = self.model_dump(), self.model_dump(exclude_defaults=True)
        ways_out = ["larger images"]
        ways_out += ["`stem: cifar`"] if all_fields.get("stem") == "native" else []
        ways_out += ["`resize_to`"] if all_fields.get("resize_to", 0) is None else []
        return ConfigError.of(
            "model",
            f"must classify images of {' x '.join(map(str, size[1:]))} (channels, size, size)",
            given=f"{type(self).__name__} {fields}, which {reason.rstrip('.')}",
            hint=f"Try {', '.join(ways_out)} or another model.",
        )
