"""The one-cycle schedule, in fastai's parameterisation.

With e = k / T, the share of the run before step k, and a = pct_start: half a cosine from 1 / div
at e = 0 to 1 at e = a, and another from there to 1 / div_final at e = 1, one step after the last.
Momentum goes the other way: max, base, max.

How it differs from `one_cycle`, torch's parameterisation: `div_final` divides the *highest* rate,
there `final_div_factor` divides the first; here the first step lies on the curve's start and the
last lies one step before its end, there both ends are met. At the same peak, with
final_div_factor = div_final / div, the two differ by 3.6 % of the highest rate in 100 steps, and by
less the longer the run.

fastai goes with Adam (decoupled decay 0.01, beta2 0.99, eps 1e-5) and a base rate of 1e-3.

Source: fastai 2, `Learner.fit_one_cycle` and `combined_cos`; Smith and Topin, arXiv 1708.07120.
"""

from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator

from tune_speed.components.schedules.base import Factors, ScheduleConfig, check_cycle, share_before
from tune_speed.components.schedules.shapes import cosine


class OneCycleFastai(ScheduleConfig):
    """One-cycle as fastai counts it: both divisors divide the highest rate.

    Source: fastai's fit_one_cycle, equal to it at every step; Smith and Topin, arXiv 1708.07120.
    """

    pct_start: float = Field(default=0.25, gt=0, lt=1)
    """Share of the run in which the rate rises, in (0, 1)."""
    div: float = Field(default=25.0, ge=1)
    """The first step's rate is the base rate divided by this, at least 1."""
    div_final: float = Field(default=1e5, ge=1)
    """The rate at the run's end, one step after its last, is the *base* rate divided by this, at
    least 1 (torch divides the first rate instead)."""
    base_momentum: float = Field(default=0.85, ge=0, lt=1)
    """Momentum (SGD) or beta1 (Adam) where the rate is highest, in [0, 1)."""
    max_momentum: float = Field(default=0.95, ge=0, lt=1)
    """Momentum of the first step and at the run's end, in [0, 1)."""

    @model_validator(mode="after")
    def _check_momentum(self) -> Self:
        check_cycle(self.base_momentum, self.max_momentum)
        return self

    def factors(
        self, progress: float, *, step_frac: float, losses: Sequence[float] = ()
    ) -> Factors:
        """Returns rate and momentum of the step; the formula heads this module."""
        before = share_before(progress, step_frac=step_frac)
        top, ends = self.base_momentum, self.max_momentum
        if before < self.pct_start:
            x = before / self.pct_start
            return Factors(lr=cosine(1 / self.div, 1.0, x), momentum=cosine(ends, top, x))
        x = (before - self.pct_start) / (1 - self.pct_start)
        return Factors(lr=cosine(1.0, 1 / self.div_final, x), momentum=cosine(top, ends, x))
