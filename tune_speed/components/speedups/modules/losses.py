"""Sums over a batch of losses other than cross-entropy."""

import functools
import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot
from torchvision.ops import sigmoid_focal_loss


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
    targets = one_hot(labels, num_classes).to(logits.dtype)
    targets = targets * (1 - label_smoothing) + label_smoothing / num_classes
    loss: Tensor = sigmoid_focal_loss(
        logits, targets, alpha=-1.0 if alpha is None else alpha, gamma=gamma, reduction="sum"
    )
    return loss


def sum_of_task_losses(
    logits: Tensor,
    labels: Tensor,
    *,
    group_of: tuple[int, ...],
    weights: tuple[float, float],
    label_smoothing: float,
) -> Tensor:
    """Returns the sum over samples of the weighted cross-entropies of groups and classes [nat].

    Args:
        logits: of classes and groups, (N, K + G).
        labels: classes, (N,).
        group_of: the group of each class, K of them.
        weights: of groups and classes.
        label_smoothing: share of the target that is spread evenly over classes, or groups.
    """
    by_class, by_group = logits[:, : len(group_of)], logits[:, len(group_of) :]
    groups = _on_device(group_of, logits.device)[labels]
    losses = (
        weight * cross_entropy(part, target, reduction="sum", label_smoothing=label_smoothing)
        for weight, part, target in zip(
            weights, (by_group, by_class), (groups, labels), strict=True
        )
        if weight
    )
    return torch.stack(list(losses)).sum()


@functools.cache
def _on_device(group_of: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(group_of, device=device)


def sum_of_exponential_losses(
    logits: Tensor, labels: Tensor, *, max_weight: float, label_smoothing: float
) -> Tensor:
    """Returns Σ exp(e) / K over the samples, with cross-entropies e and K classes.

    Where exp(e) / K passes `max_weight`, the loss goes on along its tangent, so that no sample's
    gradient is more than `max_weight` times that of cross-entropy.

    Args:
        logits: (N, K), fp32.
        labels: (N,).
        max_weight: at least 1.
        label_smoothing: share of the target that is spread over the classes.
    """
    entropy = cross_entropy(logits, labels, reduction="none", label_smoothing=label_smoothing)
    excess = entropy - math.log(logits.shape[1])
    bent = excess.clamp(max=math.log(max_weight))
    return (bent.exp() * (1 + excess - bent)).sum()
