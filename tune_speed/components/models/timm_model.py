"""Any image classifier of timm, by name."""

import functools
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from tune_speed.components.models.base import ModelConfig, Pretrained, ResizeTo
from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn


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
    stem: Literal["cifar", "native"] = "native"
    """native: first layers as published. cifar: for small images, the first convolution 3x3 with
    stride 1 (fresh weights) and no max-pool after it; ResNets and their kin have it."""
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
        """Returns a fresh network.

        Raises: ConfigError if the model does not take a field that is set, or has no such stem.
        """
        return self._fit(self._create(in_channels, num_classes, image_size, pretrained=False))

    def build(self, *, in_channels: int, num_classes: int, image_size: int) -> "nn.Module":
        """Returns the network with fresh weights, the published ones or those of the file.

        Raises: ConfigError if the model does not take a field that is set, or has no such stem;
            DataError if the published weights cannot be fetched, or the file cannot be used.
        """
        if not self.pretrained:
            return super().build(
                in_channels=in_channels, num_classes=num_classes, image_size=image_size
            )
        from tune_speed.components.models.networks.weights import fetching

        with fetching(self.name, library="timm"):
            network = self._create(in_channels, num_classes, image_size, pretrained=True)
        return self._fit(network)

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
        from tune_speed.components.models.networks.stem import resize_images, use_cifar_stem

        resize_images(network, self.resize_to)
        if self.stem == "native":
            return network
        return use_cifar_stem(network, library="timm", name=self.name)
