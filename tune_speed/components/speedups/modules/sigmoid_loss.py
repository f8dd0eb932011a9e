"""Losses of a sigmoid for each class, and what its final layer begins with."""

import math

import torch
from torch import Tensor
from torch.nn import functional
from torchvision.ops import sigmoid_focal_loss

from tune_speed.components.speedups.modules.heads import Classifier

WEIGHT_STD = 0.01
"""Standard deviation of the weights of a final layer with a prior."""


@torch.no_grad()
def set_prior(layer: Classifier, prior: float) -> None:
    """Lets each class of the final layer begin with the probability `prior`, whatever the image."""
    assert layer.bias is not None, "the layer was checked for a bias"
    layer.weight.normal_(0, WEIGHT_STD)
    layer.bias.fill_(-math.log((1 - prior) / prior))


def sum_of_focal_losses(
    logits: Tensor,
    labels: Tensor,
    *,
    alpha: float | None,
    gamma: float,
    label_smoothing: float,
) -> Tensor:
    """Returns the sum over samples and classes of the focal loss [nat].

    Args:
        logits: (N, K).
        labels: (N,).
        alpha: weight of the sample's class, others weigh 1 - alpha; None: all weigh 1.
        gamma: exponent of 1 - p_t.
        label_smoothing: share of the target that is spread evenly over the classes.
    """
    num_classes = logits.shape[1]
    targets = functional.one_hot(labels, num_classes).to(logits.dtype)
    targets = targets * (1 - label_smoothing) + label_smoothing / num_classes
    loss: Tensor = sigmoid_focal_loss(
        logits, targets, alpha=-1.0 if alpha is None else alpha, gamma=gamma, reduction="sum"
    )
    return loss
