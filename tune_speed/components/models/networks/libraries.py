"""Fitting a published network to small images and to channels, and the weights that it starts from.

Networks for ImageNet shrink an image four-fold or more before their first stage: a 32-pixel image
would end as one pixel. The `cifar` stem keeps the resolution: the first convolution becomes 3x3
with stride 1, and the max-pool after it goes. The further convolutions of a deep stem stay.
"""

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tune_speed.core.errors import ConfigError, DataError, first_line

NOTE = "loading_note"
"""Attribute of a network that says how its weights were found, where that is not by their names."""


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
        network.register_forward_pre_hook(
            lambda _, images: F.interpolate(images[0], size=(size, size), mode="bicubic")
        )
    return network


def _no_cifar_stem(library: str, name: str) -> ConfigError:
    kinds = sorted({kind.rsplit(".", 1)[1] for kind in STEMS if kind.startswith(library)})
    return ConfigError.of(
        f"model.{library}.stem",
        f"must be native for {name}: there is no `cifar` stem for its kind of network",
        given="cifar",
        hint=f"Of {library}, these kinds have one: {', '.join(kinds)}.",
    )


# How long a server of published weights may be silent [s]. torch.hub itself would wait forever.
SILENCE_S = 60.0


@contextmanager
def fetching(name: str, *, library: str) -> Iterator[None]:
    """Turns failures, but ConfigError, into DataError; bounds the wait for a silent server."""
    timeout_s = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SILENCE_S)
    try:
        yield
    except ConfigError:
        raise
    # Hubs fail by OSError, RuntimeError and errors of their HTTP clients; the cause is chained.
    except Exception as error:
        raise DataError(
            f"Fetching the published weights of {library}'s {name} "
            f"failed with {first_line(error)} Try `pretrained: false`, or a `weights_file`."
        ) from error
    finally:
        socket.setdefaulttimeout(timeout_s)


def load_weights(
    network: nn.Module, weights: Mapping[str, Tensor], *, num_classes: int, origin: str
) -> nn.Module:
    """Returns `network` with `weights`, which must have the same names and shapes.

    The classifier alone may be of another class count (shapes that differ in the first dimension,
    where the network's is `num_classes`): then it keeps its fresh weights. Where no name is the
    network's, tensors are taken in their order if number, shapes and the last parts of all names
    (`weight`, `running_mean`, …) fit; `loading_note` of the network then says so.

    Raises: DataError if anything else differs; names the first differences and `origin`.
    """
    own = network.state_dict()
    if not own.keys() & weights.keys() and fit_in_order(own, weights, num_classes):
        weights = dict(zip(own, weights.values(), strict=True))
        note = f"all {len(own)} tensors of {origin!r} have other names and were taken in order"
        setattr(network, NOTE, note)
    others = {name for name, given in weights.items() if own.get(name, given).shape != given.shape}
    heads = [name for name in others if own[name].shape == (num_classes, *weights[name].shape[1:])]
    fitting = {**weights, **{name: own[name] for name in heads}}
    differences = [
        *(f"{name} is missing" for name in own if name not in fitting),
        *(f"{name} is unknown to the model" for name in fitting if name not in own),
        *(
            f"{name} is of shape {tuple(fitting[name].shape)} instead of {tuple(own[name].shape)}"
            for name in own
            if name in fitting and fitting[name].shape != own[name].shape
        ),
    ]
    if differences:
        raise DataError(
            f"Weights must match the model, but those of {origin!r} do not: "
            f"{'; '.join(differences[:3])} ({len(differences)} differences in all). "
            "Check the model's name, its stem and the number of channels."
        )
    take_state(network, fitting)
    return network


def loading_notes(network: nn.Module) -> list[str]:
    """Returns how the weights of a network, or of one within, were found where not by names."""
    return [getattr(module, NOTE) for module in network.modules() if hasattr(module, NOTE)]


def fit_in_order(
    own: Mapping[str, Tensor], weights: Mapping[str, Tensor], num_classes: int
) -> bool:
    """Returns whether a network's own tensors are these by number, order, kind and shape."""
    return len(own) == len(weights) and all(
        name.rpartition(".")[2] == other.rpartition(".")[2]
        and tensor.shape in (given.shape, (num_classes, *given.shape[1:]))
        for (name, tensor), (other, given) in zip(own.items(), weights.items(), strict=True)
    )


def take_state(network: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Loads a network's own state from a plain mapping, which does not say modules' versions."""
    # A copy of `state_dict()` loses them, and torchvision's MNASNet refuses a state without one.
    with_versions = network.state_dict()
    with_versions.clear()
    with_versions.update(state)
    network.load_state_dict(with_versions)


def read_weights(file: str) -> dict[str, Tensor]:
    """Returns the state dict in `file`, on the CPU. Nothing but tensors is unpickled.

    Raises: DataError if the file is missing, unreadable or no state dict of tensors.
    """
    # False too for what no file can be called.
    if not os.path.isfile(file):
        raise DataError(f"`weights_file` must name a file, but there is none at {file!r}.")
    try:
        if file.endswith(".safetensors"):
            # A package that timm brings.
            from safetensors.torch import load_file

            return load_file(file)
        weights = torch.load(file, map_location="cpu", weights_only=True)
    # A damaged file fails in many ways: UnpicklingError, RuntimeError, EOFError, KeyError …
    except Exception as error:
        raise _no_state_dict(file, f"cannot be read ({first_line(error)})") from error
    if not isinstance(weights, Mapping) or not all(
        isinstance(value, Tensor) for value in weights.values()
    ):
        raise _no_state_dict(file, f"holds something else (a {type(weights).__name__})")
    return {str(name): value for name, value in weights.items()}


def _no_state_dict(file: str, what: str) -> DataError:
    return DataError(
        f"`weights_file` must hold a state dict of tensors, but {file!r} {what}. "
        "Write it with torch.save(model.state_dict(), file), or a .safetensors with safetensors."
    )
