"""What every model offers, and fields that several share, each with its meaning and bounds."""

import os
from abc import abstractmethod
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from tune_speed.core.config import Config, left_out
from tune_speed.core.errors import ConfigError, first_line
from tune_speed.core.records import Normalisation

if TYPE_CHECKING:
    from torch import nn


class ModelConfig(Config):
    """A classifier: images (N, C, H, W) in, logits (N, num_classes) out."""

    weights_file: str | None = None
    """Start from this file: a state dict of the same model, written by torch.save or, where the
    name ends in `.safetensors`, by safetensors. The classifier may be of another class count; then
    it starts fresh. Tensors whose modules all have other names are taken in their order."""
    normalise_by: Literal["weights", "data"] = left_out("weights")
    """Whose mean and deviation normalise the pixels. weights: those that published weights were
    trained with; for a `weights_file`, those that the library names for its architecture; the
    training part's where there are none. data: those of the training part, whatever the weights."""

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

        Images have `in_channels` channels, and `image_size` pixels as height and as width.

        Raises: ConfigError if this model cannot be had in that form; DataError if its weights
            cannot be fetched or read.
        """
        network = self.network(
            in_channels=in_channels, num_classes=num_classes, image_size=image_size
        )
        if self.weights_file is None:
            return network
        from tune_speed.components.models.networks.libraries import load_weights, read_weights

        file, weights = self.weights_file, read_weights(self.weights_file)
        return load_weights(network, weights, num_classes=num_classes, origin=file)

    def normalisation(self, *, in_channels: int) -> Normalisation | None:
        """Returns the statistics that the weights are used to; None: those of the training part.

        Published ones are of three channels. A grey image has their means, as the first layer of
        published weights then takes it for three equal channels; other numbers of channels have
        none.
        """
        is_fresh = self.weights_file is None and not getattr(self, "pretrained", False)
        if is_fresh or self.normalise_by == "data" or in_channels not in (1, 3):
            return None
        published = self.published_normalisation()
        if published is None or in_channels == 3:
            return published
        means = {name: (fmean(getattr(published, name)),) for name in ("mean", "std")}
        return published.model_copy(update=means)

    def published_normalisation(self) -> Normalisation | None:
        """Returns the statistics of three channels that go with the published weights, if any."""
        return None

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


def _without_file(pretrained: bool, info: ValidationInfo) -> bool:
    if pretrained and info.data.get("weights_file") is not None:
        raise ValueError("`pretrained` and `weights_file` must not be given both")
    return pretrained


def _six_n_plus_two(depth: int) -> int:
    if depth % 6 == 2:
        return depth
    below = depth - (depth - 2) % 6
    text = f"must be 6n + 2, as three stages have n blocks of two layers: {below} or {below + 6}"
    raise PydanticCustomError("depth", "{text}", {"text": text})


Stem = Annotated[
    Literal["cifar", "native"],
    Field(
        description="cifar: for small images, the first convolution 3x3 with stride 1 and no"
        " max-pool after it. native: first layers as published, for images of about 224 pixels."
    ),
]

Pretrained = Annotated[
    bool,
    AfterValidator(_without_file),
    Field(
        description="Start from the published weights, which are downloaded once; the classifier,"
        " and the first convolution of a `cifar` stem, start fresh."
    ),
]

DropRate = Annotated[
    float,
    Field(
        ge=0,
        lt=1,
        description="Share of the features before a layer of the classifier that is dropped in"
        " training, in [0, 1).",
    ),
]

DropPathRate = Annotated[
    float,
    Field(
        ge=0,
        lt=1,
        description="Probability of dropping the last residual branch in training, in [0, 1);"
        " earlier ones less. It is drawn for each image and saves no time.",
    ),
]

ResizeTo = Annotated[
    int | None,
    Field(
        ge=8,
        description="Side to which the network resizes images first, bicubically [pixels], as"
        " published weights know larger ones than CIFAR's; None: as they come.",
    ),
]

Depth = Annotated[
    int,
    AfterValidator(_six_n_plus_two),
    Field(
        ge=8,
        le=1202,
        description="Layers with weights, 6n + 2 in [8, 1202]: a convolution, three stages of n"
        " blocks with two convolutions each, and the classifier.",
    ),
]
