"""The throughput key: what must be equal for two runs to take equally long over a step.

In it are the fields of the recipe, but for those that its class or a component's lists in
`untimed_fields`: rates, schedule and length change what is learned, not how fast. Of decay,
momentum, clipping and label smoothing it matters whether there is any (`switch_fields`), also by
the schedule. Then come the step's shape, as a phase of a run with smaller images or other batches
has a key of its own; shape and number of the images, since an epoch's last step is smaller, and of
the classes; the device with its driver, allocator and TF32, the host that launches its work, and
versions; and the source of plugins, if any is loaded.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

import torch

from tune_speed.components.plugins import registry
from tune_speed.components.speedups.base import Shape
from tune_speed.core.config import canonical_hash
from tune_speed.data.split import Splits
from tune_speed.runtime.cpu_name import cpu_device_name
from tune_speed.runtime.device import describe_device
from tune_speed.runtime.device_settings import speed_settings
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import environment

VERSIONS = ("tune_speed", "python", "torch", "torchvision", "timm", "numpy")
PROTOCOL = 5
"""What keys hold and how steps are timed: 1 knew an optimizer by its name alone and no host of a
GPU, and took medians; 2 had no reference step; 3 told cold ones, too; 4 had longer ones. Times of
another protocol are not taken over."""


class Place(NamedTuple):
    """What takes steps, and with what: all that is in a key and no recipe's."""

    device: str
    """A name with threads, such as `cpu (2 threads, AMD EPYC)`."""
    host: str
    """Processor and threads that launch the device's work, which bounds short steps."""
    settings: Mapping[str, str]
    environment: Mapping[str, str]
    """Versions, see `trial.environment`."""

    @classmethod
    def of(cls, device: torch.device) -> Self:
        host = cpu_device_name(threads=torch.get_num_threads())
        return cls(describe_device(device), host, speed_settings(device), environment())

    def fields(self) -> dict[str, object]:
        versions = {name: self.environment.get(name, "") for name in VERSIONS}
        settings = dict(self.settings)
        return {
            "device": self.device,
            "host": self.host,
            "settings": settings,
            "versions": versions,
        }


def throughput_key(
    recipe: Recipe,
    *,
    shape: Shape,
    image_shape: tuple[int, ...],
    num_train: int,
    num_classes: int,
    place: Place,
) -> str:
    """Returns the key of steps on images (H, W, C), `num_train` an epoch."""
    data = {"image_shape": list(image_shape), "num_train": num_train, "num_classes": num_classes}
    # Steps of shapes that earlier versions had keep their keys.
    shape_fields = {name: value for name, value in shape._asdict().items() if value is not False}
    if not shape.is_frozen:
        # Steps that train all layers are like those of a recipe that freezes none.
        recipe = recipe.model_copy(update={"freeze": None})
    fields = {"recipe": recipe.speed_fields(), "shape": shape_fields, "protocol": PROTOCOL}
    theirs = {"plugins": registry.hashes()} if registry.loaded() else {}
    return canonical_hash({**fields, "data": data, **place.fields(), **theirs})


def place_of(device: torch.device) -> str:
    """Returns the part of keys that is no recipe's: what drifts alike has it in common."""
    return canonical_hash({**Place.of(device).fields(), "protocol": PROTOCOL})[:16]


def step_key(
    recipe: Recipe, splits: Splits, shape: Shape, *, num_train: int, device: torch.device
) -> str:
    return throughput_key(
        recipe,
        shape=shape,
        image_shape=splits.train.pixels.shape[1:],
        num_train=num_train,
        num_classes=splits.num_classes,
        place=Place.of(device),
    )
