"""What is asked of a network: where it drops at random, and whether it takes images of any size."""

import copy
from typing import NamedTuple

import torch
from torch import nn

from tune_speed.components.speedups.modules.initial_weights import first_conv

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
    """Returns the places with a rate above 0, with those of stochastic depth on request."""
    kinds = RATES | (DEPTH_RATES if stochastic_depth else {})
    places = [
        Dropout(module, attribute)
        for module in model.modules()
        for attribute in _attributes(module, kinds)
    ]
    return [place for place in places if _rate(place) > 0]


def switch_off(model: nn.Module, *, stochastic_depth: bool) -> None:
    for module, attribute in active_dropouts(model, stochastic_depth=stochastic_depth):
        setattr(module, attribute, 0.0)


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
