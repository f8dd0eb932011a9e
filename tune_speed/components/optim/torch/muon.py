"""The torch part of Muon."""

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.sgd import sgd

from tune_speed.components.optim.torch.newton_schulz import orthogonalized
from tune_speed.components.optim.torch.tensor_lists import (
    Closure,
    evaluated,
    gradients_of,
    with_gradients,
)


class MuonOptimizer(Optimizer):
    """Muon for groups with `orthogonal`, SGD with momentum for the others."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        momentum: float,
        nesterov: bool,
        newton_schulz_steps: int,
        normalize_weights: bool,
        fused: bool | None,
    ) -> None:
        defaults = {"momentum": momentum, "nesterov": nesterov, "fused": fused}
        super().__init__(groups, defaults)
        self.newton_schulz_steps = newton_schulz_steps
        self.normalize_weights = normalize_weights

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Does one step of all weights that have a gradient; returns the closure's loss."""
        loss = evaluated(closure)
        for group in self.param_groups:
            weights = with_gradients([group])
            if not weights:
                continue
            if group["weight_decay"]:
                torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            if group["orthogonal"]:
                self._muon_step(group, weights)
            else:
                self._sgd_step(group, weights)
        return loss

    def _muon_step(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        if self.normalize_weights:
            _normalize(weights)
        gradients, buffers = gradients_of(weights), self._buffers(weights)
        torch._foreach_mul_(buffers, group["momentum"])
        torch._foreach_add_(buffers, gradients)
        updates = (
            list(torch._foreach_add(gradients, buffers, alpha=group["momentum"]))
            if group["nesterov"]
            else buffers
        )
        steps = orthogonalized(updates, num_iterations=self.newton_schulz_steps)
        torch._foreach_mul_(steps, [-group["lr"] * _scale(weight) for weight in weights])
        torch._foreach_add_(weights, steps)

    def _sgd_step(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        sgd(
            weights,
            gradients_of(weights),
            self._buffers(weights),
            fused=group["fused"],
            weight_decay=0.0,
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=0.0,
            nesterov=group["nesterov"],
            maximize=False,
        )

    def _buffers(self, weights: list[Tensor]) -> list[Any]:
        """Returns the momentum buffers, zeros at first."""
        for weight in weights:
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        return [cast(Tensor, self.state[weight]["momentum_buffer"]) for weight in weights]


def _scale(weight: Tensor) -> float:
    """Returns sqrt(max(1, rows / columns)): a tall matrix has the step of a square one per row."""
    rows = len(weight)
    return math.sqrt(max(1.0, rows * rows / weight.numel()))


def _normalize(weights: list[Tensor]) -> None:
    """Scales each weight to the norm sqrt(rows)."""
    norms = torch._foreach_norm(weights)
    roots = [math.sqrt(len(weight)) for weight in weights]
    # The least norm only keeps a weight that is all zeros from becoming NaN.
    factors = torch._foreach_div(torch._foreach_clamp_min(norms, 1e-12), roots)
    torch._foreach_div_(weights, factors)
