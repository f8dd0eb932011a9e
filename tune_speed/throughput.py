"""The throughput key: what must be equal for two runs to take equally long over a step.

| in the key                                     | because                                         |
|------------------------------------------------|-------------------------------------------------|
| `model` and all below it                       | the arithmetic of a sample                      |
| `optimizer`, its name only                     | the arithmetic of an update                     |
| `batch_size`, `accumulation_steps`             | samples of a step, and into how many parts      |
| `precision`, `channels_last`, `compile`,       | which kernels do the same arithmetic            |
| `deterministic`                                |                                                 |
| `augmentation`, `loader` and all below them    | making a batch is on the training clock         |
| `clip_norm`, whether it is null                | a norm over the whole gradient, and a scale     |
| shape and number of the images, classes        | size of the arithmetic, where epochs end        |
| device, threads, versions of torch and ours    | what does the arithmetic                        |

Rates, decay, momentum, schedule, label smoothing and length change what is learned, not how fast.
A phase of a run with another shape (smaller images, other batches) has a key of its own.
"""

from collections.abc import Mapping
from typing import Any

from tune_speed.config import canonical_hash
from tune_speed.recipe import Recipe

LEARNING_ONLY = {"lr_schedule", "epochs", "label_smoothing", "effective_batch_size"}
"""Fields of a recipe that leave a step's speed alone, or are said by others."""
VERSIONS = ("tune_speed", "python", "torch", "torchvision", "timm", "numpy")


def throughput_key(
    recipe: Recipe,
    *,
    image_shape: tuple[int, ...],
    num_train: int,
    num_classes: int,
    device: str,
    environment: Mapping[str, str],
) -> str:
    """Returns the key of a recipe whose micro-batch is resolved, on one kind of device.

    Args:
        recipe: as it runs.
        image_shape: (H, W, C).
        num_train: images of an epoch.
        num_classes: size of the last layer.
        device: name with threads, such as `cpu (2 threads, AMD EPYC)`.
        environment: versions, as `trial.environment` has them.
    """
    versions = {name: environment.get(name, "") for name in VERSIONS}
    place = {"device": device, "versions": versions}
    data = {"image_shape": list(image_shape), "num_train": num_train, "num_classes": num_classes}
    return canonical_hash({"recipe": speed_fields(recipe), "data": data, **place})


def speed_fields(recipe: Recipe) -> dict[str, Any]:
    """Returns the fields of a recipe that a step's speed depends on."""
    fields = recipe.model_dump(mode="json", exclude=LEARNING_ONLY)
    fields["optimizer"] = type(recipe.optimizer).__name__
    fields["clip_norm"] = recipe.clip_norm is not None
    return fields
