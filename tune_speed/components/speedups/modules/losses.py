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
    """Returns the sum of `Focal`'s loss [nat] of logits (N, K); `alpha` None: classes weigh 1."""
    num_classes = logits.shape[1]
    targets = one_hot(labels, num_classes).to(logits.dtype)
    targets = targets * (1 - label_smoothing) + label_smoothing / num_classes
    # -1 is torchvision's way to leave the classes unweighted.
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

    Of logits (N, K + G) of classes and groups, and labels (N,); `group_of` has the group of each of
    K classes, `weights` those of groups and classes.
    """
    by_class, by_group = logits[:, : len(group_of)], logits[:, len(group_of) :]
    groups = _on_device(group_of, logits.device)[labels]
    # A loss that weighs 0 is computed too: steps before and after cost the same, as timed.
    losses = (
        weight * cross_entropy(part, target, reduction="sum", label_smoothing=label_smoothing)
        for weight, part, target in zip(
            weights, (by_group, by_class), (groups, labels), strict=True
        )
    )
    return torch.stack(list(losses)).sum()


# A copy from the host at each step would have the host wait for the device.
@functools.cache
def _on_device(group_of: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(group_of, device=device)


def sum_of_exponential_losses(
    logits: Tensor, labels: Tensor, *, max_weight: float, label_smoothing: float
) -> Tensor:
    """Returns Σ exp(e) / K over the samples, with cross-entropies e and K classes.

    Of logits (N, K), fp32, and labels (N,). Where exp(e) / K passes `max_weight`, at least 1, the
    loss continues along its tangent, so that no sample's gradient is more than `max_weight` times
    that of cross-entropy.
    """
    entropy = cross_entropy(logits, labels, reduction="none", label_smoothing=label_smoothing)
    excess = entropy - math.log(logits.shape[1])
    bent = excess.clamp(max=math.log(max_weight))
    return (bent.exp() * (1 + excess - bent)).sum()
