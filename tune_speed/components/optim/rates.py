"""Setting an optimizer's rates for one step."""

from typing import TYPE_CHECKING

from tune_speed.components.schedules.base import Factors

if TYPE_CHECKING:
    from torch.optim import Optimizer


def set_rates(optimizer: "Optimizer", factors: Factors) -> None:
    """Sets each group's rate to base_lr * factors.lr, and its momentum or beta1 where given.

    A group without either finds its momentum by itself (YellowFin), and the schedule's is ignored.
    """
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factors.lr
        if factors.momentum is None:
            continue
        if "betas" in group:
            group["betas"] = (factors.momentum, *group["betas"][1:])
        elif "momentum" in group:
            group["momentum"] = factors.momentum
