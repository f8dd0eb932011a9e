"""What every learning-rate schedule offers: a pure function of progress and of past losses."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from tune_speed.core.config import Config


class Factors(NamedTuple):
    """What a schedule sets for one optimizer step."""

    lr: float
    """Multiplies the optimizer's base rate."""
    momentum: float | None
    """Momentum (SGD) or beta1 (Adam) itself, not a factor; None leaves the optimizer's own."""


def check_cycle(base: float, most: float) -> None:
    """Raises: ValueError if the momentum at the highest rate is above that at both ends."""
    if base > most:
        raise ValueError(
            f"`base_momentum` must be at most `max_momentum`, but got {base} and {most}"
        )


class ScheduleConfig(Config):
    """A learning-rate schedule over a run whose length is known beforehand."""

    follows_loss: ClassVar[bool] = False
    """Whether the validation loss has a say in it."""

    @abstractmethod
    def factors(
        self, progress: float, *, step_frac: float, losses: Sequence[float] = ()
    ) -> Factors:
        """Returns the factors of one optimizer step.

        Of T optimizer steps k = 0 … T-1, step k has `progress` (k + 1) / T, in (0, 1], and every
        step has `step_frac` 1 / T, which is the progress of the first.

        Args:
            progress: share of the run that is over after this step.
            step_frac: share of the run that one step is.
            losses: mean validation loss of each evaluation so far, the untrained model's first.
                All are finite.
        """


def share_before(progress: float, *, step_frac: float) -> float:
    """Returns k / T of step k: the share of the run that is over before it, in [0, 1)."""
    assert 0 < step_frac <= progress <= 1, f"{progress=}, {step_frac=}"
    return progress - step_frac


def cosine(start: float, end: float, x: float) -> float:
    """Returns end + (start - end) (1 + cos(pi x)) / 2."""
    return end + (start - end) * (1 + math.cos(math.pi * x)) / 2


def linear(start: float, end: float, x: float) -> float:
    """Returns start + (end - start) x."""
    return start + (end - start) * x
