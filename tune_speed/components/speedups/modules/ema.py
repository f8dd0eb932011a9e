"""Averages of a network's weights: an exponential moving one, and that of schedule-free steps.

Weights θ_1, θ_2, … are taken in at f_1 < f_2 < … of the run. With half-life h and f_0 = 0,
average_k = Σ_i (0.5^((f_k − f_i)/h) − 0.5^((f_k − f_{i−1})/h)) · θ_i / (1 − 0.5^(f_k/h)):
each θ_i has the weight of the part of the run that ends with it, and that weight decays.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn


class MovingAverage:
    """Keeps the average in a model of its own."""

    def __init__(self, model: nn.Module, *, half_life: float, every: int) -> None:
        """Begins with an empty average, in a copy of `model`, updated `every` so many steps."""
        self.model = copy.deepcopy(model).requires_grad_(False)
        self._half_life, self._every = half_life, every
        self._num_steps, self._frac = 0, 0.0

    def update(self, model: nn.Module, *, frac: float) -> None:
        is_due = self._num_steps % self._every == 0 or frac >= 1
        self._num_steps += 1
        if is_due:
            _move(self.model, model, weight=self._gone(frac - self._frac) / self._gone(frac))
            self._frac = frac

    def state(self) -> dict[str, Any]:
        tensors = _tensors(self.model)
        return {"tensors": tensors, "num_steps": self._num_steps, "frac": self._frac}

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        for mean, saved in zip(_tensors(self.model), state["tensors"], strict=True):
            mean.copy_(saved)
        self._num_steps, self._frac = state["num_steps"], state["frac"]

    def _gone(self, frac: float) -> float:
        return 1 - math.exp2(-frac / self._half_life)


class Interpolated:
    """Makes the mean weights x = y + (1 - 1/beta) (z - y), in a model of its own, when asked.

    The optimizer's own `eval` moves the weights y that train, and `train` moves them back but for
    rounding: a run would depend on how often it is evaluated.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, beta: float) -> None:
        self._trained, self._optimizer, self._beta = model, optimizer, beta
        self._mean = copy.deepcopy(model).requires_grad_(False)

    @property
    @torch.no_grad()
    def model(self) -> nn.Module:
        for mean, trained in zip(_tensors(self._mean), _tensors(self._trained), strict=True):
            mean.copy_(trained)
            if (state := self._optimizer.state.get(trained)) and "z" in state:
                mean.lerp_(state["z"], 1 - 1 / self._beta)
        return self._mean

    def update(self, model: nn.Module, *, frac: float) -> None:
        """Does nothing: the optimizer's step keeps the mean."""

    def state(self) -> dict[str, Any]:
        """Returns nothing: all of it is in the weights and the optimizer's state."""
        return {}

    def restore(self, state: dict[str, Any]) -> None: ...


@torch.no_grad()
def _move(average: nn.Module, model: nn.Module, *, weight: float) -> None:
    pairs = list(zip(_tensors(average), _tensors(model), strict=True))
    floats = [(mean, new) for mean, new in pairs if mean.is_floating_point()]
    torch._foreach_lerp_([mean for mean, _ in floats], [new for _, new in floats], weight)
    # Counts, as those of the batches that a batch norm has seen: torch has no lerp of integers.
    for mean, new in pairs:
        if not mean.is_floating_point():
            mean.copy_(new)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
