"""What a network is asked: its last layer, where it drops at random, what images it takes."""

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tune_speed.components.speedups.base import refusal

Classifier = nn.Linear | nn.Conv2d
"""A layer that gives the logits; a convolution where they are pooled afterwards."""
WEIGHT_STD = 0.01
"""Standard deviation of the weights of a final layer with a prior."""


def heads_of(model: nn.Module) -> list[tuple[str, Classifier]]:
    """Returns name and layer of all that give logits, in the order of registration.

    They are in what `get_classifier` returns, which models of timm have, and ours with several
    heads, but for layers that another one in the same part follows; layers of as many outputs with
    `aux` in their name are heads too. Of other networks it is the layer registered last.
    """
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, Classifier)]
    getters = (getattr(module, "get_classifier", None) for module in model.modules())
    parts = next((getter() for getter in getters if callable(getter)), ())
    named = parts if isinstance(parts, tuple) else (parts,)
    inside = [[m for m in part.modules() if isinstance(m, Classifier)] for part in named]
    heads = [layer for own in inside for layer in own if not _is_hidden(layer, own)]
    sizes = {len(layer.weight) for layer in heads}
    heads += [layer for name, layer in layers if "aux" in name and len(layer.weight) in sizes]
    return [pair for pair in layers if pair[1] in heads] or layers[-1:]


def _is_hidden(layer: Classifier, part: list[Classifier]) -> bool:
    inputs = [later.weight.shape[1] for later in part[part.index(layer) + 1 :]]
    return len(layer.weight) in inputs and len(layer.weight) != len(part[-1].weight)


def find_classifier(model: nn.Module, *, path: str) -> tuple[str, Classifier]:
    """Returns the final layer. Raises: ConfigError with `path` if there is none, or several."""
    heads = heads_of(model)
    if len(heads) == 1:
        return heads[0]
    names = ", ".join(name for name, _ in heads)
    given = f"{type(model).__name__}, which has {len(heads)}: {names}" if heads else ""
    raise refusal(
        path, must="must have a network with one final layer", given=given or type(model).__name__
    )


def drop_relu(model: nn.Module, name: str) -> None:
    parent, _, own = name.rpartition(".")
    children = dict(model.get_submodule(parent).named_children())
    following = list(children)[list(children).index(own) + 1 :]
    if following and isinstance(children[following[0]], nn.ReLU):
        model.set_submodule(f"{parent}.{following[0]}", nn.Identity())


@torch.no_grad()
def set_prior(layer: Classifier, prior: float) -> None:
    """Lets each class of the final layer begin with the probability `prior`, whatever the image."""
    assert layer.bias is not None, "the layer was checked for a bias"
    layer.weight.normal_(0, WEIGHT_STD)
    # The inverse of the sigmoid: a softmax would cancel a bias that all classes share.
    layer.bias.fill_(-math.log((1 - prior) / prior))


class TwoHeads(nn.Module):
    """Logits of the classes, (…, K); in training followed by those of the groups, (…, K + G)."""

    def __init__(self, classes: nn.Module, *, num_groups: int) -> None:
        super().__init__()
        assert isinstance(classes, nn.Linear)
        self.classes = classes
        self.groups = nn.Linear(
            classes.in_features,
            num_groups,
            device=classes.weight.device,
            dtype=classes.weight.dtype,
        )

    def get_classifier(self) -> tuple[nn.Module, ...]:
        return self.classes, self.groups

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.classes(features)
        if not self.training:
            return logits
        return torch.cat([logits, self.groups(features)], dim=-1)


# Attributes that hold a rate, by the class that has them or a base of it.
RATES = {
    # torch.nn: dropout of all kinds, attention, recurrent layers.
    "_DropoutNd": ("p",),
    "MultiheadAttention": ("dropout",),
    "RNNBase": ("dropout",),
    # torchvision: Swin's attention; DenseNet's layers have a drop_rate.
    "ShiftedWindowAttention": ("attention_dropout", "dropout"),
}

# What networks of timm, and DenseNets of torchvision, call the rate for F.dropout.
SHARED_RATE = "drop_rate"

# The same for the stochastic depth of timm and torchvision.
DEPTH_RATES = {"DropPath": ("drop_prob",), "StochasticDepth": ("p",)}


class Dropout(NamedTuple):
    """One place where a network drops."""

    module: nn.Module
    attribute: str


def active_dropouts(model: nn.Module, *, stochastic_depth: bool) -> list[Dropout]:
    kinds = RATES | (DEPTH_RATES if stochastic_depth else {})
    places = [
        Dropout(module, attribute)
        for module in model.modules()
        for attribute in _attributes(module, kinds)
    ]
    return [place for place in places if _rate(place) > 0]


def _attributes(module: nn.Module, kinds: dict[str, tuple[str, ...]]) -> list[str]:
    # Base classes too: torch's dropouts derive from one that has the rate.
    classes = {kind.__name__ for kind in type(module).__mro__}
    named = [name for kind, names in kinds.items() if kind in classes for name in names]
    return [*named, SHARED_RATE]


def _rate(place: Dropout) -> float:
    rate = getattr(place.module, place.attribute, None)
    return float(rate) if isinstance(rate, int | float) else 0.0


# Sides of images [pixels] that are tried; networks without global pooling take one of them.
SIDES = (32, 64, 96, 128, 48, 192, 224, 160, 256, 16, 28, 8)


def why_one_size(model: nn.Module) -> Exception | None:
    """Returns with what error the network refuses images of all sizes but one, if it does."""
    # It runs where its weights are: on torch's meta device not every network can.
    first = first_conv(model)
    if first is None:
        return TypeError("it has no convolution")
    network = copy.deepcopy(model).eval()
    num_taken, last_error = 0, None
    for side in SIDES:
        error = _error_of(network, first.weight.new_zeros(1, first.in_channels, side, side))
        num_taken += error is None
        last_error = error or last_error
        if num_taken == 2:
            return None
    return last_error


def _error_of(network: nn.Module, images: torch.Tensor) -> Exception | None:
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            network(images)
    # Networks refuse images by RuntimeError, ValueError, AssertionError, TypeError and others.
    except Exception as error:
        return error
    return None


def first_conv(model: nn.Module) -> nn.Conv2d | None:
    """Returns the convolution that was registered first, or None."""
    return next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
