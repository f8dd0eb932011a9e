"""The torch part of YellowFin: clipping, tuning, stepping, and the closed loop."""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from tune_speed.components.optim.torch.tensor_lists import (
    Closure,
    decayed_gradients,
    evaluated,
    flat,
    shared_state,
    squared_norm,
    with_gradients,
)

# The reference code's, against logarithms and quotients of 0.
EPS = 1e-6
# Keeps the momentum below 1 where gradients vanish.
LEAST_P = 1e-18

# What the tuner remembers; plain values and tensors, so that a checkpoint can hold it.
Record = dict[str, Any]


class Landscape(NamedTuple):
    """What the gradients say about the loss."""

    curvature_min: Tensor
    curvature_max: Tensor
    variance: Tensor
    distance: Tensor


def new_record(*, window: int, device: torch.device) -> Record:
    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=device)

    names = ("distance", "curvature_max", "momentum", "target", "correction", "rate")
    return {
        "num_steps": 0,
        "squared_norms": zeros(window),
        "averages": zeros(4),
        **{name: zeros() for name in names},
    }


def observe(
    record: Record, *, squared_norm: Tensor, squared_average: Tensor, beta: float
) -> Landscape:
    """Takes the gradient of one step into `record` and returns the landscape as it looks now.

    l, h = least and largest n of the window; h_min, h_max = exp(E[log(l, h + EPS)] / z);
    C = max(E[n]/z - ||E[g]/z||^2, EPS); D = E[E[||g||] / (E[n] + EPS)] / z. Here n is
    `squared_norm`, ||E[g]||^2 `squared_average`, and `beta` the factor of the running means E.
    """
    t, squared_norms, averages = record["num_steps"], record["squared_norms"], record["averages"]
    squared_norms[t % len(squared_norms)] = squared_norm
    seen = squared_norms[: t + 1]
    logs = (torch.stack(seen.aminmax()) + EPS).log()
    now = torch.cat((logs, torch.stack((squared_norm, squared_norm.sqrt()))))
    averages.lerp_(now, 1 - beta)
    _, _, mean_square, mean_norm = averages
    record["distance"].lerp_(mean_norm / (mean_square + EPS), 1 - beta)
    record["num_steps"] = t + 1
    debias = 1 - beta ** (t + 1)
    curvature_min, curvature_max = (averages[:2] / debias).exp()
    variance = (mean_square / debias - squared_average / debias**2).clamp(min=EPS)
    record["curvature_max"] = curvature_max
    return Landscape(curvature_min, curvature_max, variance, record["distance"] / debias)


def one_minus_root(p: Tensor) -> Tensor:
    """Returns s in (0, 1) with p * (1 - s) = s^3, for p > 0; 1 - s is the root of the momentum."""
    # By the hyperbolic sine instead of Vieta's substitution, which is a difference of large numbers
    # and loses digits from p = 1e5 on.
    return 2 * (p / 3).sqrt() * torch.sinh(torch.asinh(1.5 * (3 / p).sqrt()) / 3)


def single_step(landscape: Landscape) -> tuple[Tensor, Tensor]:
    """Returns the momentum m and rate a that minimise m D^2 + a^2 C.

    With x = sqrt m, subject to a = (1 - x)^2 / h_min and x >= (sqrt r - 1) / (sqrt r + 1), where
    r = h_max / h_min. The free minimum is where p x = (1 - x)^3, p = D^2 h_min^2 / (2 C).
    """
    low, high, variance, distance = landscape
    p = ((distance * low).square() / (2 * variance)).clamp(min=LEAST_P)
    s = one_minus_root(p)
    root_r = (high / low).sqrt()
    # x as s^3 / p keeps all digits where 1 - s would not: for large p.
    x = torch.maximum(s**3 / p, (root_r - 1) / (root_r + 1))
    return x.square(), (1 - x).square() / low


# Share of the difference that the loop takes back in each step (the paper's gamma).
GAIN = 0.01


def total_momentum(velocity: Tensor, previous_velocity: Tensor, gradient: Tensor) -> Tensor:
    """Returns the median over coordinates of (velocity - gradient) / previous_velocity, shape `()`.

    A velocity is a step divided by minus its rate: (x_{t-s-1} - x_{t-s}) / a and, before that,
    (x_{t-s-2} - x_{t-s-1}) / a. NaN where no coordinate moved before. Shapes `(N,)`; the gradient
    is that at x_{t-s-1}.
    """
    # The paper's formula is the same fraction times -a; divided by the rate, it also holds where
    # the rate changes and momentum acts as in torch's SGD.
    return torch.nanmedian((velocity - gradient) / previous_velocity)


def next_correction(correction: Tensor, *, target: Tensor, measured: Tensor) -> Tensor:
    """Returns correction + GAIN * (target - measured), or `correction` where that is not finite."""
    # For a fixed target this is the paper's m <- m + GAIN * (target - measured), m being
    # target + correction. Where the target moves, m follows it at once; so without staleness, where
    # the measured momentum is m, the correction stays 0.
    moved = correction + GAIN * (target - measured)
    return torch.where(measured.isfinite(), moved, correction)


# The reference code's rate of the first step, whose momentum is 0.
FIRST_RATE = 1e-4
# The first step, from 0, that is clipped.
FIRST_CLIPPED = 2
# Times h_max: the largest squared norm that the estimates may see.
STATISTICS_BOUND = 100.0
# Largest rate * norm.
STEP_BOUND = 100.0


class YellowFinOptimizer(Optimizer):
    """SGD with the tuner's rate and momentum; a group's `lr` is a factor on the rate."""

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        beta: float,
        window: int,
        clip: bool,
        closed_loop: bool,
        staleness: int = 0,
    ) -> None:
        super().__init__(groups, defaults={"lr": 1.0, "weight_decay": 0.0})
        self.beta = beta
        self.window = window
        self.clip = clip
        self.closed_loop = closed_loop
        self.staleness = staleness
        device = self.param_groups[0]["params"][0].device
        shared_state(self)["tuner"] = new_record(window=window, device=device)

    @property
    def tuner(self) -> Record:
        return cast(Record, shared_state(self)["tuner"])

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        loss = evaluated(closure)
        weights = with_gradients(self.param_groups)
        if not weights:
            return loss
        if self.closed_loop:
            self._sense(weights)
        gradients = self._tune(weights, decayed_gradients(self.param_groups))
        if self.closed_loop:
            # Before the move, which changes the weights in place.
            for name, tensors in (("last_weight", weights), ("last_gradient", gradients)):
                torch._foreach_copy_([self._memory(w, name) for w in weights], tensors)
        self._move(weights, gradients)
        return loss

    def _tune(self, weights: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        tuner = self.tuner
        t, bound = tuner["num_steps"], tuner["curvature_max"]
        is_clipped = self.clip and t >= FIRST_CLIPPED
        square = squared_norm(gradients)
        if is_clipped:
            gradients, square = _clipped(gradients, square, STATISTICS_BOUND * bound)
        averages = [self._memory(weight, "gradient_average") for weight in weights]
        torch._foreach_lerp_(averages, gradients, 1 - self.beta)
        landscape = observe(
            tuner, squared_norm=square, squared_average=squared_norm(averages), beta=self.beta
        )
        momentum, rate = single_step(landscape)
        if t == 0:
            momentum, rate = torch.zeros_like(momentum), torch.full_like(rate, FIRST_RATE)
        else:
            # Slow start: estimates from few gradients can give enormous rates.
            rate = rate * min(1.0, (t + 1) / (10 * self.window))
        # All groups have the same factor, as `OptimizerConfig.groups` builds them.
        rate = rate * self.param_groups[0]["lr"]
        if is_clipped:
            rate = torch.minimum(rate, STEP_BOUND / (square.sqrt() + EPS))
            gradients, _ = _clipped(gradients, square, bound)
        tuner |= {"target": momentum, "momentum": momentum + tuner["correction"], "rate": rate}
        return gradients

    def _move(self, weights: list[Tensor], gradients: list[Tensor]) -> None:
        momentum = self.tuner["momentum"].to(weights[0].dtype)
        rate = self.tuner["rate"].to(weights[0].dtype)
        buffers = [self._memory(weight, "momentum_buffer") for weight in weights]
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, gradients)
        torch._foreach_sub_(weights, torch._foreach_mul(buffers, rate))

    def _sense(self, weights: list[Tensor]) -> None:
        tuner = self.tuner
        if tuner["num_steps"] == 0:
            return
        last, gradient = (
            [self._memory(weight, name) for weight in weights]
            for name in ("last_weight", "last_gradient")
        )
        moves = torch._foreach_sub(last, weights)
        velocities = torch._foreach_div(moves, tuner["rate"].to(weights[0].dtype))
        # The latest first; of each weight (staleness + 2, *its shape).
        histories = [self._memory(w, "velocities", self.staleness + 2) for w in weights]
        for history, velocity in zip(histories, velocities, strict=True):
            history.copy_(torch.cat([velocity[None], history[:-1]]))
        # The last gradient is of the weights from which, so many steps ago, this one led on.
        step, before = (
            flat([history[self.staleness + back] for history in histories]) for back in (0, 1)
        )
        # Not finite as long as there is no step before it, which `next_correction` passes over.
        measured = total_momentum(step, before, flat(gradient)).double()
        tuner["correction"] = next_correction(
            tuner["correction"], target=tuner["target"], measured=measured
        )

    def _memory(self, weight: Tensor, name: str, count: int | None = None) -> Tensor:
        """Returns a tensor of the weight's record, or `count` of them, zeros at first."""
        record = self.state[weight]
        if name not in record:
            shape = weight.shape if count is None else (count, *weight.shape)
            record[name] = weight.new_zeros(shape)
        return cast(Tensor, record[name])


def _clipped(gradients: list[Tensor], square: Tensor, bound: Tensor) -> tuple[list[Tensor], Tensor]:
    factor = (bound / square).sqrt().clamp(max=1.0)
    # 0 / 0 where all gradients are 0.
    factor = torch.where(square > bound, factor, torch.ones_like(factor))
    scaled = torch._foreach_mul(gradients, factor.to(gradients[0].dtype))
    return list(scaled), square * factor.square()
