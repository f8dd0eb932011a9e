"""Fitting a published network to small images, by its first layers or by resizing, or to channels.

Networks for ImageNet shrink an image four-fold or more before their first stage: a 32-pixel image
would end as one pixel. The `cifar` stem keeps the resolution: the first convolution becomes 3x3
with stride 1, and the max-pool after it goes. The further convolutions of a deep stem stay.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from tune_speed.core.errors import ConfigError


class Stem(NamedTuple):
    """Where a network's first layers are."""

    conv: str
    """Module that is, or begins with, the first convolution."""
    dropped: tuple[str, ...] = ()
    """Modules between that convolution and the first stage that shrink the image, or pad it for
    such a one; where a variant lacks them, nothing is to do."""


# Stem of each network class that can have the `cifar` stem; any other class is refused.
STEMS: Mapping[str, Stem] = {
    "timm.models.densenet.DenseNet": Stem("features.conv0", ("features.pool0",)),
    "timm.models.efficientnet.EfficientNet": Stem("conv_stem"),
    "timm.models.mobilenetv3.MobileNetV3": Stem("conv_stem"),
    "timm.models.regnet.RegNet": Stem("stem"),
    "timm.models.resnet.ResNet": Stem("conv1", ("maxpool",)),
    "timm.models.resnetv2.ResNetV2": Stem("stem", ("stem.pad", "stem.pool")),
    "torchvision.models.alexnet.AlexNet": Stem("features.0", ("features.2",)),
    "torchvision.models.densenet.DenseNet": Stem("features.conv0", ("features.pool0",)),
    "torchvision.models.efficientnet.EfficientNet": Stem("features.0"),
    "torchvision.models.mnasnet.MNASNet": Stem("layers.0"),
    "torchvision.models.mobilenetv2.MobileNetV2": Stem("features.0"),
    "torchvision.models.mobilenetv3.MobileNetV3": Stem("features.0"),
    "torchvision.models.regnet.RegNet": Stem("stem"),
    "torchvision.models.resnet.ResNet": Stem("conv1", ("maxpool",)),
    "torchvision.models.shufflenetv2.ShuffleNetV2": Stem("conv1", ("maxpool",)),
    "torchvision.models.squeezenet.SqueezeNet": Stem("features.0", ("features.2",)),
}


def use_cifar_stem(network: nn.Module, *, library: str, name: str) -> nn.Module:
    """Returns `network` with a fresh `cifar` stem. Raises: ConfigError if its kind has none."""
    kind = f"{type(network).__module__}.{type(network).__qualname__}"
    stem = STEMS.get(kind)
    if stem is None:
        raise _no_cifar_stem(library, name)
    path, conv = first_conv(network, within=stem.conv)
    if conv.stride not in ((2, 2), (4, 4)) or conv.groups != 1:
        raise _no_cifar_stem(library, name)
    # The same class, as timm has convolutions that standardise their weights.
    small = type(conv)(
        conv.in_channels, conv.out_channels, kernel_size=3, padding=1, bias=conv.bias is not None
    )
    nn.init.kaiming_normal_(small.weight, mode="fan_out", nonlinearity="relu")
    if small.bias is not None:
        nn.init.zeros_(small.bias)
    network.set_submodule(path, small)
    for dropped in dict(network.named_modules()).keys() & stem.dropped:
        network.set_submodule(dropped, nn.Identity())
    return network


def first_conv(network: nn.Module, *, within: str = "") -> tuple[str, nn.Conv2d]:
    """Returns path and module of the first convolution, in order of registration."""
    for path, module in network.get_submodule(within).named_modules(prefix=within):
        if isinstance(module, nn.Conv2d):
            return path, module
    raise AssertionError(f"{type(network).__name__} has no convolution within `{within}`")


def set_in_channels(network: nn.Module, in_channels: int) -> nn.Module:
    """Returns `network` with a first convolution for `in_channels` channels.

    Its weights are derived from those it has: for one channel their sum, otherwise the channels in
    turn, times old / new count.
    """
    path, old = first_conv(network)
    if old.in_channels == in_channels:
        return network
    new = nn.Conv2d(
        in_channels,
        old.out_channels,
        kernel_size=(old.kernel_size[0], old.kernel_size[1]),
        stride=(old.stride[0], old.stride[1]),
        padding=old.padding if isinstance(old.padding, str) else (old.padding[0], old.padding[1]),
        bias=old.bias is not None,
    )
    weight = old.weight.detach()
    # So a grey image gives what it gave as equal channels, and the response has its size.
    if in_channels == 1:
        new.weight.data.copy_(weight.sum(dim=1, keepdim=True))
    else:
        copies = weight[:, [c % weight.shape[1] for c in range(in_channels)]]
        new.weight.data.copy_(copies * (weight.shape[1] / in_channels))
    if old.bias is not None and new.bias is not None:
        new.bias.data.copy_(old.bias.detach())
    network.set_submodule(path, new)
    return network


def resize_images(network: nn.Module, size: int | None) -> nn.Module:
    """Returns `network`, which resizes its images to `size` pixels a side; None: as they are."""
    # A hook, so that the weights keep their names.
    if size is not None:
        network.register_forward_pre_hook(functools.partial(_resized, size=size))
    return network


def _resized(_: nn.Module, images: tuple[Tensor], *, size: int) -> Tensor:
    return F.interpolate(images[0], size=(size, size), mode="bicubic")


def _no_cifar_stem(library: str, name: str) -> ConfigError:
    kinds = sorted({kind.rsplit(".", 1)[1] for kind in STEMS if kind.startswith(library)})
    return ConfigError.of(
        f"model.{library}.stem",
        f"must be native for {name}: there is no `cifar` stem for its kind of network",
        given="cifar",
        hint=f"Of {library}, these kinds have one: {', '.join(kinds)}.",
    )
