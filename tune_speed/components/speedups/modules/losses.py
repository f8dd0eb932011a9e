"""Losses of a batch: cross-entropy and others, of one label an image, soft or several."""

import functools
import math

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torchvision.ops import sigmoid_focal_loss

from tune_speed.data.augmentation.mix import as_targets


def targets_of(labels: Tensor, num_classes: int, *, label_smoothing: float) -> Tensor:
    """Returns targets (N, K), fp32: t (1 − s) + s/K of labels (N,), or of soft or several (N, K).

    Source: Szegedy et al. 2016 (arXiv:1512.00567), section 7; timm's `mixup_target` gives the same.
    """
    targets = as_targets(labels, num_classes)
    return targets * (1 - label_smoothing) + label_smoothing / num_classes


def losses_of(logits: Tensor, labels: Tensor, *, are_several: bool) -> Tensor:
    """Returns each sample's cross-entropy [nat], (N,), of logits (N, K) and labels (N,) or (N, K).

    Where an image may be of several classes, it is the sum over classes of the binary one.
    """
    if not are_several:
        return cross_entropy(logits, labels, reduction="none")
    return binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(dim=1)


def weights_on(device: torch.device, class_weights: tuple[float, ...]) -> Tensor | None:
    """Returns the weights (K,) of the classes there; None for none: all weigh 1."""
    return _on_device(class_weights, device) if class_weights else None


def sum_of_focal_losses(
    logits: Tensor, labels: Tensor, *, alpha: float | None, gamma: float, label_smoothing: float
) -> Tensor:
    """Returns the sum of `Focal`'s loss [nat] of logits (N, K); `alpha` None: classes weigh 1."""
    targets = targets_of(labels, logits.shape[1], label_smoothing=label_smoothing)
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

    Of logits (N, K + G) of classes and groups, and labels (N,), or soft ones (N, K); `group_of` has
    the group of each of K classes, `weights` those of groups and classes.
    """
    by_class, by_group = logits[:, : len(group_of)], logits[:, len(group_of) :]
    place = _on_device(group_of, logits.device)
    if labels.ndim == 1:
        groups = place[labels]
    else:
        groups = torch.zeros_like(by_group).index_add_(1, place, labels)
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
def _on_device(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.as_tensor(numbers, device=device)


def sum_of_exponential_losses(
    logits: Tensor, labels: Tensor, *, max_weight: float, label_smoothing: float
) -> Tensor:
    """Returns Σ exp(e) / K over the samples, with cross-entropies e and K classes.

    Of logits (N, K), fp32, and labels (N,) or (N, K). Where exp(e) / K passes `max_weight`, at
    least 1, the loss continues along its tangent, so that no sample's gradient is more than
    `max_weight` times that of cross-entropy.
    """
    entropy = cross_entropy(logits, labels, reduction="none", label_smoothing=label_smoothing)
    excess = entropy - math.log(logits.shape[1])
    bent = excess.clamp(max=math.log(max_weight))
    return (bent.exp() * (1 + excess - bent)).sum()
