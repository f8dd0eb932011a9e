"""The throughput key: what must be equal for two runs to take equally long over a step.

| in the key                                     | because                                         |
|------------------------------------------------|-------------------------------------------------|
| `model` and all below it                       | the arithmetic of a sample                      |
| `optimizer`, as far as it changes a step       | the arithmetic of an update                     |
| `batch_size`, `accumulation_steps`             | samples of a step, and into how many parts      |
| `precision`, `matmul_precision`, `compile`,    | which kernels do the same arithmetic            |
| `compile_mode`, `cuda_graph`, `deterministic`, |                                                 |
| `channels_last`, `optimizer_kernels`           |                                                 |
| `augmentation`, `loader` and all below them    | making a batch is on the training clock         |
| `clip_norm`, `clip_value`, whether null        | a pass over the whole gradient                  |
| `label_smoothing`, whether 0                   | one more term of the loss                       |
| `speedups`, as far as they change a step       | what is computed of a sample                    |
| the step's shape: size of the images it sees,  | phases of one run                               |
| growth, share learned from, stage, bias frozen |                                                 |
| `devices`                                      | they wait for one another                       |
| shape and number of the images, classes        | size of the arithmetic, where epochs end        |
| device, processor and threads of the host,     | what does the arithmetic, and what launches it  |
| driver, allocator, TF32, versions              |                                                 |
| source of the plugins, if any is loaded        | what does the arithmetic                        |

A field of a component is in the key unless its class lists it in `untimed_fields`. Rates, schedule
and length change what is learned, not how fast; of decay and momentum it matters whether there is
any (`switch_fields`), also by the schedule.
A phase of a run with another shape (smaller images, other batches) has a key of its own.
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
