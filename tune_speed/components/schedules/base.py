"""What every learning-rate schedule offers: a pure function of progress and of past losses."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from pydantic import Field, model_validator

from tune_speed.core.config import Config


class Factors(NamedTuple):
    """What a schedule sets for one optimizer step."""

    lr: float
    """Multiplies the optimizer's base rate."""
    momentum: float | None
    """Momentum (SGD) or beta1 (Adam) itself, not a factor; None leaves the optimizer's own."""


Losses = Sequence[float]
"""Mean validation losses of the evaluations so far, oldest first."""


class ScheduleConfig(Config):
    """A learning-rate schedule over a run whose length is known beforehand."""

    follows_loss: ClassVar[bool] = False
    """Whether the validation loss has a say in it."""

    @abstractmethod
    def factors(self, progress: float, *, step_frac: float, losses: Losses = ()) -> Factors:
        """Returns the factors of one optimizer step.

        Of T optimizer steps k = 0 … T-1, step k has `progress` (k + 1) / T, in (0, 1], and every
        step has `step_frac` 1 / T, which is the progress of the first. `losses` are the mean
        validation losses of all evaluations so far, the untrained model's first; all are finite.
        """


class Cycle(ScheduleConfig):
    """A schedule whose momentum falls to `base_momentum` and rises to `max_momentum` again."""

    @model_validator(mode="after")
    def _check_momentum(self: Any) -> Any:
        base, most = self.base_momentum, self.max_momentum
        if base > most:
            raise ValueError(
                f"`base_momentum` must be at most `max_momentum`, but got {base} and {most}"
            )
        return self


def share_before(progress: float, *, step_frac: float) -> float:
    """Returns k / T of step k: the share of the run that is over before it, in [0, 1)."""
    assert 0 < step_frac <= progress <= 1, f"{progress=}, {step_frac=}"
    return progress - step_frac


def cosine(start: float, end: float, x: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * x)) / 2


def linear(start: float, end: float, x: float) -> float:
    return start + (end - start) * x


class WithWarmup(ScheduleConfig):
    """A schedule that may begin with a linear warm-up."""

    warmup_frac: float = Field(default=0.0, ge=0, lt=1)
    """Share of the run in which the rate rises to the base rate, step by step, in [0, 1); 0: none.
    Goyal et al.: 5 epochs of 90."""
    warmup_start: float = Field(default=0.1, gt=0, le=1)
    """Factor of the first step where there is a warm-up, in (0, 1]. Goyal et al.: 1/k where the
    batch is k times that of the reference."""

    def warmup(self, before: float) -> float:
        """Returns f + (1 - f) e / w up to w, then 1.

        With e = `before`, the share of the run before the step, w = warmup_frac and
        f = warmup_start. The factor rises at every step, and step wT is the first
        at the full rate. With f = 1 / k and a rate k times that of the reference batch, this is
        `eta_t = eta + (k eta - eta) t / T_w`.

        Source: Goyal et al., arXiv 1706.02677, section 2.2; equal to
        torch.optim.lr_scheduler.LinearLR(start_factor=f, total_iters=wT).
        """
        if before >= self.warmup_frac:
            return 1.0
        return linear(self.warmup_start, 1.0, before / self.warmup_frac)


class Constant(WithWarmup):
    """Leaves the rate and the momentum as the optimizer has them, from the warm-up's end on.

    Source: SGD with one rate to tune; the warm-up of Goyal et al., arXiv 1706.02677.
    """

    def factors(self, progress: float, *, step_frac: float, losses: Losses = ()) -> Factors:
        return Factors(lr=self.warmup(share_before(progress, step_frac=step_frac)), momentum=None)
