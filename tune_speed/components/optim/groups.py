"""Which parameters are decayed, and which have a rate of their own."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def parameter_groups(
    model: "nn.Module", *, lr: float, weight_decay: float, decay_norms_and_biases: bool
) -> list[dict[str, Any]]:
    """Returns the trainable parameters in up to two groups: decayed, and norms and biases.

    Norms and biases are the tensors of at most one dimension. Each group keeps its rate as
    `base_lr`, from which `set_rates` derives the rate of a step; empty groups are left out.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in trainable if decay_norms_and_biases or p.ndim > 1]
    kept = [p for p in trainable if not decay_norms_and_biases and p.ndim <= 1]
    groups = ((decayed, weight_decay), (kept, 0.0))
    return [
        {"params": parameters, "weight_decay": decay, "lr": lr, "base_lr": lr}
        for parameters, decay in groups
        if parameters
    ]


def with_bias_lr(groups: list[dict[str, Any]], lr: float | None) -> list[dict[str, Any]]:
    """Returns the groups, norms and biases apart and with the rate `lr`; None: as they are."""
    if lr is None:
        return groups
    split = []
    for group in groups:
        weights = [p for p in group["params"] if p.ndim > 1]
        biases = [p for p in group["params"] if p.ndim <= 1]
        split += [{**group, "params": weights}] if weights else []
        split += [{**group, "params": biases, "lr": lr, "base_lr": lr}] if biases else []
    return split
