"""The one-cycle schedule, in torch's parameterisation and in fastai's.

Torch's, `one_cycle`: with progress p = (k + 1) / T of step k of T, s = 1 / T and a = pct_start, the
rise, p <= a, goes over x = (p - s) / (a - s) from 1 / div_factor to 1, and the fall over
x = (p - a) / (1 - a) from 1 to 1 / (div_factor * final_div_factor). All are reached exactly, at the
first, the highest and the last step: torch's `OneCycleLR(total_steps=T, three_phase=False)`.

fastai's, `one_cycle_fastai`: with e = k / T, the share of the run before step k, half a cosine from
1 / div at e = 0 to 1 at e = a, and another from there to 1 / div_final at e = 1, one step after the
last. Momentum goes the other way: max, base, max. `div_final` divides the *highest* rate,
`final_div_factor` the first. At the same peak, with final_div_factor = div_final / div, the two
differ by 3.6 % of the highest rate in 100 steps, and by less the longer the run. fastai goes with
Adam (decoupled decay 0.01, beta2 0.99, eps 1e-5) and a base rate of 1e-3.
"""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from tune_speed.components.schedules.base import (
    Factors,
    ScheduleConfig,
    check_cycle,
    cosine,
    linear,
    share_before,
)


class OneCycle(ScheduleConfig):
    """The rate rises to its base value, then falls far below where it began; momentum mirrors it.

    Source: Smith and Topin, "Super-Convergence", arXiv 1708.07120; equal to torch's OneCycleLR at
    every step.
    """

    pct_start: float = Field(default=0.3, gt=0, lt=1)
    """Share of the steps in which the rate rises, in (0, 1)."""
    div_factor: float = Field(default=25.0, ge=1)
    """The first step's rate is the base rate divided by this, at least 1."""
    final_div_factor: float = Field(default=1e4, ge=1)
    """The last step's rate is the *first* rate divided by this, at least 1 (torch's way; fastai
    divides the highest rate instead)."""
    anneal: Literal["cos", "linear"] = "cos"
    """Shape of the rise and of the fall: half a cosine, or a straight line."""
    cycle_momentum: bool = True
    """Let the momentum (SGD) or beta1 (Adam) run against the rate."""
    base_momentum: float = Field(default=0.85, ge=0, lt=1)
    """Momentum where the rate is highest, in [0, 1)."""
    max_momentum: float = Field(default=0.95, ge=0, lt=1)
    """Momentum of the first and of the last step, in [0, 1)."""

    @model_validator(mode="after")
    def _check_momentum(self) -> Self:
        check_cycle(self.base_momentum, self.max_momentum)
        return self

    def factors(
        self, progress: float, *, step_frac: float, losses: Sequence[float] = ()
    ) -> Factors:
        assert 0 < step_frac <= progress <= 1, f"{progress=}, {step_frac=}"
        first = 1 / self.div_factor
        if progress <= self.pct_start:
            x = rise_position(progress, pct_start=self.pct_start, step_frac=step_frac)
            return self._factors((first, 1.0), (self.max_momentum, self.base_momentum), x)
        x = (progress - self.pct_start) / (1 - self.pct_start)
        last = first / self.final_div_factor
        return self._factors((1.0, last), (self.base_momentum, self.max_momentum), x)

    def _factors(
        self, rates: tuple[float, float], momenta: tuple[float, float], x: float
    ) -> Factors:
        between = cosine if self.anneal == "cos" else linear
        momentum = between(*momenta, x) if self.cycle_momentum else None
        return Factors(lr=between(*rates, x), momentum=momentum)


def rise_position(progress: float, *, pct_start: float, step_frac: float) -> float:
    """Returns x in the rise; 1, the peak, where the rise is no longer than the first step."""
    # Where both are equal, torch divides by zero. For pct_start < step_frac the first step is on
    # its way down already, as in torch: a run of a single step gets the last, lowest rate.
    if pct_start <= step_frac:
        return 1.0
    return (progress - step_frac) / (pct_start - step_frac)


class OneCycleFastai(ScheduleConfig):
    """One-cycle as fastai counts it: both divisors divide the highest rate.

    Source: fastai 2, `Learner.fit_one_cycle` and `combined_cos`, equal to it at every step; Smith
    and Topin, arXiv 1708.07120.
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
        before = share_before(progress, step_frac=step_frac)
        top, ends = self.base_momentum, self.max_momentum
        if before < self.pct_start:
            x = before / self.pct_start
            return Factors(lr=cosine(1 / self.div, 1.0, x), momentum=cosine(ends, top, x))
        x = (before - self.pct_start) / (1 - self.pct_start)
        return Factors(lr=cosine(1.0, 1 / self.div_final, x), momentum=cosine(top, ends, x))
