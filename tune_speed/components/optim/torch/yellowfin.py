"""The torch part of YellowFin: clipping, tuning, stepping, and the closed loop."""

from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from tune_speed.components.optim.torch.tensor_lists import (
    Closure,
    decayed_gradients,
    evaluated,
    flat,
    squared_norm,
    with_gradients,
)
from tune_speed.components.optim.torch.total_momentum import next_correction, total_momentum
from tune_speed.components.optim.torch.yellowfin_tuning import (
    EPS,
    Record,
    new_record,
    observe,
    single_step,
)

FIRST_RATE = 1e-4
"""The reference code's rate of the first step, whose momentum is 0."""
FIRST_CLIPPED = 2
"""The first step, from 0, that is clipped."""
STATISTICS_BOUND = 100.0
"""Times h_max: the largest squared norm that the estimates may see."""
STEP_BOUND = 100.0
"""Largest rate * norm."""


class YellowFinOptimizer(Optimizer):
    """SGD with the tuner's rate and momentum; a group's `lr` is a factor on the rate.

    All groups have the same factor, as `OptimizerConfig.groups` builds them.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        beta: float,
        window: int,
        clip: bool,
        closed_loop: bool,
    ) -> None:
        super().__init__(groups, defaults={"lr": 1.0, "weight_decay": 0.0})
        self.beta = beta
        self.window = window
        self.clip = clip
        self.closed_loop = closed_loop
        device = self.param_groups[0]["params"][0].device
        self._records["tuner"] = new_record(window=window, device=device)

    @property
    def _records(self) -> dict[Any, Any]:
        """The state, which also holds what belongs to no single weight."""
        return cast(dict[Any, Any], self.state)

    @property
    def tuner(self) -> Record:
        """What the tuner remembers, with the last momentum and rate; part of `state_dict()`."""
        return cast(Record, self._records["tuner"])

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """Does one step of SGD at the tuned rate and momentum; returns the closure's loss."""
        loss = evaluated(closure)
        weights = with_gradients(self.param_groups)
        if not weights:
            return loss
        if self.closed_loop:
            self._sense(weights)
        gradients = self._tune(weights, decayed_gradients(self.param_groups))
        if self.closed_loop:
            self._remember(weights, gradients)
        self._move(weights, gradients)
        return loss

    def _tune(self, weights: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        """Sets the tuner's momentum and rate; returns the gradients to step with."""
        tuner = self.tuner
        t, bound = tuner["num_steps"], tuner["curvature_max"]
        is_clipped = self.clip and t >= FIRST_CLIPPED
        square = squared_norm(gradients)
        if is_clipped:
            gradients, square = _clipped(gradients, square, STATISTICS_BOUND * bound)
        averages = [self._kept(weight, "gradient_average") for weight in weights]
        torch._foreach_lerp_(averages, gradients, 1 - self.beta)
        landscape = observe(
            tuner,
            squared_norm=square,
            squared_average=squared_norm(averages),
            beta=self.beta,
        )
        momentum, rate = single_step(landscape)
        if t == 0:
            momentum, rate = torch.zeros_like(momentum), torch.full_like(rate, FIRST_RATE)
        else:
            # Slow start: estimates from few gradients can give enormous rates.
            rate = rate * min(1.0, (t + 1) / (10 * self.window))
        rate = rate * self.param_groups[0]["lr"]
        if is_clipped:
            rate = torch.minimum(rate, STEP_BOUND / (square.sqrt() + EPS))
            gradients, _ = _clipped(gradients, square, bound)
        tuner |= {"target": momentum, "momentum": momentum + tuner["correction"], "rate": rate}
        return gradients

    def _move(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        momentum = self.tuner["momentum"].to(weights[0].dtype)
        rate = self.tuner["rate"].to(weights[0].dtype)
        buffers = [self._kept(weight, "momentum_buffer") for weight in weights]
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, gradients)
        torch._foreach_sub_(weights, torch._foreach_mul(buffers, rate))

    def _sense(self, weights: list[Tensor]) -> None:
        """Takes the momentum that the last steps show into the tuner's correction."""
        tuner = self.tuner
        if tuner["num_steps"] == 0:
            return
        last, before, gradient = (
            [self._kept(weight, name) for weight in weights]
            for name in ("last_weight", "last_velocity", "last_gradient")
        )
        moves = torch._foreach_sub(last, weights)
        velocity = torch._foreach_div(moves, tuner["rate"].to(weights[0].dtype))
        # NaN as long as there is no step before the last one, which `next_correction` passes over.
        measured = total_momentum(flat(velocity), flat(before), flat(gradient)).double()
        tuner["correction"] = next_correction(
            tuner["correction"], target=tuner["target"], measured=measured
        )
        torch._foreach_copy_(before, velocity)

    def _remember(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        torch._foreach_copy_([self._kept(weight, "last_weight") for weight in weights], weights)
        torch._foreach_copy_([self._kept(weight, "last_gradient") for weight in weights], gradients)

    def _kept(self, weight: Tensor, name: str) -> Tensor:
        """Returns a tensor of the weight's record, zeros at first."""
        record = self.state[weight]
        if name not in record:
            record[name] = torch.zeros_like(weight)
        return cast(Tensor, record[name])


def _clipped(gradients: list[Tensor], square: Tensor, bound: Tensor) -> tuple[list[Tensor], Tensor]:
    """Returns gradients of a squared norm of at most `bound`, and that squared norm.

    Their squared norm is `square` before; those within the bound stay as they are.
    """
    factor = (bound / square).sqrt().clamp(max=1.0)
    # 0 / 0 where all gradients are 0.
    factor = torch.where(square > bound, factor, torch.ones_like(factor))
    scaled = torch._foreach_mul(gradients, factor.to(gradients[0].dtype))
    return list(scaled), square * factor.square()
