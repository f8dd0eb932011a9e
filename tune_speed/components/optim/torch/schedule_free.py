"""The weights that a schedule-free optimizer means to be evaluated."""

import copy
from typing import Any

import torch
from torch import nn

from tune_speed.components.speedups.modules.ema import tensors_of


class Interpolated:
    """Makes the mean weights x = y + (1 - 1/beta) (z - y), in a model of its own, when asked.

    The optimizer's own `eval` moves the weights that train, and `train` moves them back but for
    rounding: a run would depend on how often it is evaluated.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, beta: float) -> None:
        self._trained, self._optimizer, self._beta = model, optimizer, beta
        self._mean = copy.deepcopy(model).requires_grad_(False)

    @property
    @torch.no_grad()
    def model(self) -> nn.Module:
        for mean, trained in zip(tensors_of(self._mean), tensors_of(self._trained), strict=True):
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
