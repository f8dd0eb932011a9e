"""What every learning-rate schedule offers: a pure function of progress."""

from abc import abstractmethod
from typing import NamedTuple

from tune_speed.config import Config


class Factors(NamedTuple):
    """What a schedule sets for one optimizer step."""

    lr: float
    """Multiplies the optimizer's base rate."""
    momentum: float | None
    """Momentum (SGD) or beta1 (Adam) itself, not a factor; None leaves the optimizer's own."""


class ScheduleConfig(Config):
    """A learning-rate schedule over a run whose length is known beforehand."""

    @abstractmethod
    def factors(self, progress: float, *, step_frac: float) -> Factors:
        """Returns the factors of one optimizer step.

        Of T optimizer steps k = 0 … T-1, step k has `progress` (k + 1) / T, in (0, 1], and every
        step has `step_frac` 1 / T, which is the progress of the first.
        """
