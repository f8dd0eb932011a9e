"""Any image classifier of timm or torchvision, by name."""

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from tune_speed.components.models.base import ModelConfig, Pretrained, ResizeTo, Stem
from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Normalisation

if TYPE_CHECKING:
    from torch import Tensor, nn


@functools.cache
def _names() -> frozenset[str]:
    # Making the list takes 8 ms.
    import timm

    return frozenset(timm.list_models() + timm.list_models(pretrained=True))


class Timm(ModelConfig):
    """Any image classifier of timm, by name.

    Source: the library timm, `timm.create_model`. The `cifar` stem is not of its making.
    """

    name: str
    """Name in timm, such as `resnet18`; with a tag, `resnet18.a1_in1k`, it picks the weights that
    `pretrained` loads."""
    stem: Stem = "native"
    pretrained: Pretrained = False
    drop_rate: float | None = Field(default=None, ge=0, lt=1)
    """Share of the features before the classifier that is dropped, in [0, 1); None: timm's own."""
    drop_path_rate: float | None = Field(default=None, ge=0, lt=1)
    """Probability of skipping the last residual branch (stochastic depth; earlier ones less), in
    [0, 1); None: timm's own."""
    patch_size: int | None = Field(default=None, ge=1)
    """Side of the patches that a vision transformer cuts its input into [pixels, or cells of the
    feature map of a hybrid]; None: as published. `pretrained` weights are resampled to it."""
    resize_to: ResizeTo = None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name in _names():
            return name
        text = f"must be the name of a model of timm{did_you_mean(name, _names())}"
        raise PydanticCustomError("model_name", "{text}", {"text": text})

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        import timm

        if self.pretrained and not timm.is_model_pretrained(self.name):
            raise ValueError(f"`pretrained` must be false: timm has no weights for {self.name}")
        return self

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        """Raises: ConfigError if the model does not take a field that is set, or the stem."""
        return self._fit(self._create(in_channels, num_classes, image_size, pretrained=False))

    def build(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        if not self.pretrained:
            return super().build(
                in_channels=in_channels, num_classes=num_classes, image_size=image_size
            )
        from tune_speed.components.models.networks.libraries import fetching

        with fetching(self.name, library="timm"):
            network = self._create(in_channels, num_classes, image_size, pretrained=True)
        return self._fit(network)

    def published_normalisation(self) -> Normalisation | None:
        """Source: timm's `resolve_data_config`, which reads the tag's `pretrained_cfg`."""
        import timm

        published = timm.get_pretrained_cfg(self.name)
        if published is None:
            return None
        name = self.name.partition(".")[0] + (f".{published.tag}" if published.tag else "")
        return Normalisation(mean=published.mean, std=published.std, source=f"timm's {name}")

    def arguments(
        self, *, in_channels: Any, num_classes: Any, image_size: Any, pretrained: bool
    ) -> dict[str, Any]:
        """Returns what `timm.create_model` is called with beside the name; None is not given."""
        import timm

        # A model with position embeddings has to be told the size, any other refuses it.
        published = timm.get_pretrained_cfg(self.name)
        is_fixed = published is not None and published.fixed_input_size
        given = {
            "pretrained": pretrained,
            "num_classes": num_classes,
            "in_chans": in_channels,
            "drop_rate": self.drop_rate,
            "drop_path_rate": self.drop_path_rate,
            "img_size": (self.resize_to or image_size) if is_fixed else None,
            "patch_size": self.patch_size,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _create(
        self, in_channels: int, num_classes: int, image_size: int, *, pretrained: bool
    ) -> "nn.Module":
        import timm

        sizes = {"in_channels": in_channels, "num_classes": num_classes, "image_size": image_size}
        try:
            network: nn.Module = timm.create_model(
                self.name, **self.arguments(**sizes, pretrained=pretrained)
            )
        except TypeError as error:
            # Which fields a model takes shows when it is made: the error names the argument.
            for field in ("drop_rate", "drop_path_rate", "patch_size"):
                if f"'{field}'" in str(error):
                    must = "must be left out, as it takes none"
                    raise self._must(field, must, getattr(self, field)) from error
            if "'img_size'" in str(error):
                must = "must be a model for any size of image, which it is not"
                raise self._must("name", must, f"images of {image_size} pixels") from error
            raise
        return network

    def _must(self, field: str, must: str, given: object) -> ConfigError:
        return ConfigError.of(f"model.timm.{field}", f"{must} ({self.name})", given=str(given))

    def _fit(self, network: "nn.Module") -> "nn.Module":
        from tune_speed.components.models.networks.libraries import resize_images, use_cifar_stem

        resize_images(network, self.resize_to)
        if self.stem == "native":
            return network
        return use_cifar_stem(network, library="timm", name=self.name)


# What torchvision calls `drop_rate`, by family. Some of the other families swallow unknown
# arguments without a word, so that trying would not tell.
_CNNS = ("alexnet", "efficientnet", "googlenet", "inception", "mnasnet", "mobilenet", "squeezenet")
DROP_RATE_ARGUMENTS: Mapping[str, str] = {
    **dict.fromkeys((*_CNNS, "swin", "vgg", "vit"), "dropout"),
    "densenet": "drop_rate",
}

# What torchvision calls `drop_path_rate`, by family; Swin and MaxViT fix theirs by the name.
DROP_PATH_RATE_ARGUMENTS: Mapping[str, str] = {
    "convnext": "stochastic_depth_prob",
    "efficientnet": "stochastic_depth_prob",
}


class TorchVision(ModelConfig):
    """Any image classifier of torchvision, by name.

    Source: the library torchvision, `torchvision.models.get_model`. The `cifar` stem is not of its
    making.
    """

    name: str
    """Name in torchvision, such as `resnet18`; with a tag, `resnet50.IMAGENET1K_V1`, it picks the
    weights that `pretrained` loads, where the newest are torchvision's default."""
    stem: Stem = "native"
    pretrained: Pretrained = False
    drop_rate: float | None = Field(default=None, ge=0, lt=1)
    """Torchvision's `dropout`, mostly the share of the features before the classifier that is
    dropped, in [0, 1); None: torchvision's own."""
    drop_path_rate: float | None = Field(default=None, ge=0, lt=1)
    """Probability of skipping the last residual branch (stochastic depth; earlier ones less), in
    [0, 1); None: torchvision's own."""
    resize_to: ResizeTo = None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        import torchvision

        names = torchvision.models.list_models(module=torchvision.models)
        network, dot, _ = name.partition(".")
        if network in names and dot:
            tags = torchvision.models.get_model_weights(network).__members__
            names = [f"{network}.{tag}" for tag in tags]
        if name in names:
            return name
        text = f"must be the name of a classifier of torchvision{did_you_mean(name, names)}"
        raise PydanticCustomError("model_name", "{text}", {"text": text})

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        taken = {"drop_rate": DROP_RATE_ARGUMENTS, "drop_path_rate": DROP_PATH_RATE_ARGUMENTS}
        for field, families in taken.items():
            if getattr(self, field) is not None and self._family not in families:
                raise ValueError(
                    f"`{field}` must be left out: torchvision's {self.name} takes none"
                )
        return self

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        """Returns a fresh network. Raises: ConfigError if the model has no such stem."""
        return self._fit(self._create(num_classes, image_size), in_channels)

    def build(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        if not self.pretrained:
            return super().build(
                in_channels=in_channels, num_classes=num_classes, image_size=image_size
            )
        from tune_speed.components.models.networks.libraries import fetching, load_weights

        with fetching(self.name, library="torchvision"):
            entry = self._published_weights()
            weights: dict[str, Tensor] = entry.get_state_dict(
                progress=False, check_hash=True, weights_only=True
            )
        # The network is made without the auxiliary classifiers.
        weights = {k: v for k, v in weights.items() if not k.lower().startswith("aux")}
        # Before its stem and channels are fitted: the weights are of the layers as published.
        network = self._create(num_classes, image_size)
        load_weights(network, weights, num_classes=num_classes, origin=self.name)
        return self._fit(network, in_channels)

    def _published_weights(self) -> Any:
        import torchvision

        tag = self.name.partition(".")[2] or "DEFAULT"
        return torchvision.models.get_model_weights(self.network_name)[tag]

    def published_normalisation(self) -> Normalisation:
        """Source: the `transforms()` of torchvision's default weights."""
        entry = self._published_weights()
        seen = entry.transforms()
        return Normalisation(mean=seen.mean, std=seen.std, source=f"torchvision's {entry}")

    @property
    def network_name(self) -> str:
        """The name in torchvision, without a tag."""
        return self.name.partition(".")[0]

    @property
    def _family(self) -> str:
        return re.split(r"[^a-z]", self.name)[0]

    def arguments(self, *, num_classes: Any, image_size: Any) -> dict[str, Any]:
        """Returns what `torchvision.models.get_model` is called with beside name and weights."""
        seen_size = self.resize_to or image_size
        arguments: dict[str, Any] = {"num_classes": num_classes}
        if self.drop_rate is not None:
            arguments[DROP_RATE_ARGUMENTS[self._family]] = self.drop_rate
        if self.drop_path_rate is not None:
            arguments[DROP_PATH_RATE_ARGUMENTS[self._family]] = self.drop_path_rate
        if self._family in ("googlenet", "inception"):
            # With the auxiliary classifiers on, training gives three logits instead of one.
            arguments |= {"aux_logits": False, "init_weights": True}
        if self._family == "vit":
            arguments["image_size"] = seen_size
        if self._family == "maxvit":
            arguments["input_size"] = (seen_size, seen_size)
        return arguments

    def _create(self, num_classes: int, image_size: int) -> "nn.Module":
        import torchvision

        arguments = self.arguments(num_classes=num_classes, image_size=image_size)
        network: nn.Module = torchvision.models.get_model(
            self.network_name, weights=None, **arguments
        )
        return network

    def _fit(self, network: "nn.Module", in_channels: int) -> "nn.Module":
        from tune_speed.components.models.networks.libraries import (
            resize_images,
            set_in_channels,
            use_cifar_stem,
        )

        network = resize_images(set_in_channels(network, in_channels), self.resize_to)
        if self.stem == "native":
            return network
        return use_cifar_stem(network, library="torchvision", name=self.name)
