"""Weights before the first step: by Kaiming He's rule, by whitening patches, from another data set.

A patch has D values, channels · kernel height · kernel width, and an image P patches.
"""

import copy
import math
from collections.abc import Iterable, Iterator
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from tune_speed.components.models.networks.libraries import take_state
from tune_speed.components.speedups.base import Start, refusal
from tune_speed.components.speedups.modules import heads
from tune_speed.components.speedups.modules.residual import find_blocks
from tune_speed.data.base import DatasetConfig
from tune_speed.data.cache import prepare
from tune_speed.data.loaders.base import Batching, Loader
from tune_speed.data.loaders.configs import Resident
from tune_speed.data.orders import SampleOrder
from tune_speed.data.split import SplitConfig, Splits, make_splits

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm)


def draw_weights(model: nn.Module) -> None:
    """Draws convolutions but those that give logits; sets norms to 1 and 0, and biases to 0."""
    found = [layer for _, layer in heads.heads_of(model)]
    for module in model.modules():
        is_head = module in found and getattr(module, "kernel_size", (1, 1)) == (1, 1)
        if isinstance(module, nn.Conv2d) and not is_head:
            fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
            module.weight.data.normal_(0, math.sqrt(2 / fan_out))
        elif isinstance(module, NORMS) and module.weight is not None:
            module.weight.data.fill_(1)
        bias = getattr(module, "bias", None)
        if isinstance(bias, nn.Parameter):
            bias.data.zero_()


def last_norms(model: nn.Module) -> list[nn.BatchNorm2d]:
    """Returns the norm at the end of each residual block's branch, where there is one."""
    kinds = nn.Conv2d | nn.BatchNorm2d
    children = [list(block.module.children()) for block in find_blocks(model)]
    lasts = ([layer for layer in layers if isinstance(layer, kinds)][-1] for layers in children)
    # Blocks that end with a convolution (pre-activation) have none: a scale of 0 before their last
    # ReLU would have no gradient, and stay.
    return [last for last in lasts if isinstance(last, nn.BatchNorm2d)]


# Values of the patches that are unfolded at once, 64 MiB.
MOST_VALUES = 2**24


def statistics(conv: nn.Conv2d, batches: Iterable[Tensor], *, count: int) -> tuple[Tensor, Tensor]:
    """Returns mean (D,) and covariance (D, D), float64, of the first `count` images' patches."""
    size = conv.in_channels * conv.kernel_size[0] * conv.kernel_size[1]
    num_patches = 0
    # In fp32 the covariance, a difference of large sums, may lose its digits.
    total = torch.zeros(size, dtype=torch.float64, device=conv.weight.device)
    squares = torch.zeros(size, size, dtype=torch.float64, device=conv.weight.device)
    for images in _first(batches, count):
        for patches in _patches(conv, images):
            num_patches += len(patches)
            total += patches.sum(dim=0, dtype=torch.float64)
            squares += (patches.T @ patches).double()
    mean = total / num_patches
    return mean, squares / num_patches - mean[:, None] * mean


@torch.no_grad()
def set_filters(conv: nn.Conv2d, covariance: Tensor, *, eps: float) -> None:
    """Sets the first filters of a convolution to whiten patches of that covariance (D, D)."""
    values, vectors = torch.linalg.eigh(covariance.cpu())
    num_pairs = min(conv.out_channels // 2, len(values))
    # eigh gives the smallest first, and rounding may take it below 0.
    scales = (values.flip(0)[:num_pairs].clamp(min=0) + eps).sqrt()
    filters = vectors.flip(1)[:, :num_pairs].T / scales[:, None]
    pairs = torch.cat([filters, -filters]).reshape(-1, *conv.weight.shape[1:])
    conv.weight[: len(pairs)] = pairs.to(conv.weight)
    if conv.bias is not None:
        conv.bias.zero_()


def _first(batches: Iterable[Tensor], count: int) -> Iterator[Tensor]:
    left = count
    for images in batches:
        yield images[:left]
        left -= len(images)
        if left <= 0:
            return


def _patches(conv: nn.Conv2d, images: Tensor) -> Iterator[Tensor]:
    """Yields the patches of a few images after the other, (B · P, D)."""
    assert not isinstance(conv.padding, str), "convolutions of networks have padding in numbers"
    height, width = images.shape[2:]
    values = conv.weight[0].numel() * height * width
    step = max(1, MOST_VALUES * conv.stride[0] * conv.stride[1] // values)
    for few in torch.split(images.float(), step):
        columns = functional.unfold(few, conv.kernel_size, conv.dilation, conv.padding, conv.stride)
        yield columns.transpose(1, 2).flatten(0, 1)


PRETRAIN_OTHER = "speedups.init.pretrain_other"


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
    name, own = heads.find_classifier(model, path=PRETRAIN_OTHER)
    other = copy.deepcopy(model)
    other.set_submodule(name, _for_classes(own, splits.num_classes))
    order = SampleOrder(len(splits.train.labels), batch_size, start.seed)
    batching = Batching(order, splits.mean, splits.std, start.device)
    loader = Resident().open(splits.train, batching)
    num_steps = epochs * math.ceil(loader.num_samples / batch_size)
    start.fit(other, _passes(loader, epochs), num_steps)
    loader.close()
    learned = other.state_dict()
    kept = {f"{name}.{field}": value for field, value in own.state_dict().items()}
    take_state(model, {**learned, **kept})


def _check_channels(model: nn.Module, splits: Splits) -> None:
    first = heads.first_conv(model)
    channels = splits.train.pixels.shape[-1]
    if first is None or first.in_channels == channels:
        return
    raise refusal(
        f"{PRETRAIN_OTHER}.dataset",
        must=f"must have images of {first.in_channels} channels, as those of the run",
        given=f"{channels} channels",
    )


def _for_classes(layer: heads.Classifier, num_classes: int) -> heads.Classifier:
    fresh: heads.Classifier
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
