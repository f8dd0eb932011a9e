"""The last layer of a classifier: finding it, a prior in its bias, a second one next to it."""

import math

import torch
from torch import Tensor, nn

from tune_speed.components.speedups.base import refusal

Classifier = nn.Linear | nn.Conv2d
"""A layer that gives the logits; a convolution where they are pooled afterwards."""
WEIGHT_STD = 0.01
"""Standard deviation of the weights of a final layer with a prior."""


def find_classifier(model: nn.Module, *, path: str) -> tuple[str, Classifier]:
    """Returns name and layer of the linear layer or convolution that was registered last.

    Raises:
        ConfigError: if there is none; it names `path` of the recipe.
    """
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    if not layers:
        raise refusal(
            path, must="must have a network with a final layer", given=type(model).__name__
        )
    return layers[-1]


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

    def forward(self, features: Tensor) -> Tensor:
        """Returns the logits of features (…, C)."""
        logits: Tensor = self.classes(features)
        if not self.training:
            return logits
        return torch.cat([logits, self.groups(features)], dim=-1)
