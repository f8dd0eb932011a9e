"""Training a network on another data set, but for its final layer."""

import copy
import math
from collections.abc import Iterator
from functools import cache

from torch import Tensor, nn

from tune_speed.components.models.networks.weights import take_state
from tune_speed.components.speedups.base import Start, refusal
from tune_speed.components.speedups.modules.heads import Classifier, find_classifier
from tune_speed.components.speedups.modules.patches import first_conv
from tune_speed.data.augment import Augmentation
from tune_speed.data.base import DatasetConfig
from tune_speed.data.cache import prepare
from tune_speed.data.loaders.base import Loader
from tune_speed.data.loaders.configs import Resident
from tune_speed.data.split import SplitConfig, Splits, make_splits

PATH = "speedups.init.pretrain_other"


@cache
def read_other(dataset: DatasetConfig, train_samples: int | None) -> Splits:
    """Returns the other data set's parts, read once per process. Raises: ConfigError, DataError."""
    return make_splits(prepare(dataset), SplitConfig(train_samples=train_samples))


def learn_from_other(
    model: nn.Module,
    start: Start,
    data: tuple[DatasetConfig, int | None],
    *,
    epochs: int,
    batch_size: int,
) -> None:
    """Gives `model` the weights and statistics that a copy of it learns, final layer apart.

    `data` names the data set and how many images of it; None: all.

    Raises:
        ConfigError: if the images have another number of channels, or there is no final layer.
    """
    splits = read_other(*data)
    _check_channels(model, splits)
    name, own = find_classifier(model, path=PATH)
    other = copy.deepcopy(model)
    other.set_submodule(name, _for_classes(own, splits.num_classes))
    loader = Resident().open(
        splits.train,
        mean=splits.mean,
        std=splits.std,
        batch_size=batch_size,
        augmentation=Augmentation(),
        seed=start.seed,
        device=start.device,
        channels_last=True,
    )
    num_steps = epochs * math.ceil(loader.num_samples / batch_size)
    start.fit(other, _passes(loader, epochs), num_steps)
    loader.close()
    learned = other.state_dict()
    kept = {f"{name}.{field}": value for field, value in own.state_dict().items()}
    take_state(model, {**learned, **kept})


def _check_channels(model: nn.Module, splits: Splits) -> None:
    first = first_conv(model)
    channels = splits.train.pixels.shape[-1]
    if first is None or first.in_channels == channels:
        return
    raise refusal(
        f"{PATH}.dataset",
        must=f"must have images of {first.in_channels} channels, as those of the run",
        given=f"{channels} channels",
    )


def _for_classes(layer: Classifier, num_classes: int) -> Classifier:
    """Returns a fresh layer like `layer` for another number of classes, where `layer` is."""
    fresh: Classifier
    if isinstance(layer, nn.Linear):
        fresh = nn.Linear(layer.in_features, num_classes, bias=layer.bias is not None)
    else:
        assert layer.kernel_size == (1, 1), "a convolution that gives logits looks at one pixel"
        fresh = nn.Conv2d(layer.in_channels, num_classes, 1, bias=layer.bias is not None)
    return fresh.to(layer.weight)


def _passes(loader: Loader, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    for epoch in range(epochs):
        for images, labels in loader.epoch(epoch):
            # Batch norm may refuse a lone image.
            if len(labels) > 1:
                yield images, labels
