"""The last layer of a classifier: finding it, a prior in its bias, a second one next to it."""

import math

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
    """Returns whether a later layer takes the outputs of this one, which are of another size."""
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
        path,
        must="must have a network with one final layer",
        given=given or type(model).__name__,
    )


def drop_relu(model: nn.Module, name: str) -> None:
    """Takes the ReLU that follows the layer `name` out of its sequence, if there is one."""
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
