"""A second head for groups of classes, and the loss of both."""

import functools

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


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
