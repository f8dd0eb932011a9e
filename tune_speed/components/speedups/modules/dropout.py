"""Where a network drops at random: modules, and rates that a network's `forward` passes on."""

from typing import NamedTuple

from torch import nn

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
    """Sets every rate to 0."""
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
