"""Schedules whose rate falls, most of them after a warm-up.

In the formulas e = k / T is the share of the run before step k of T, and w is warmup_frac. A run's
*end* is one step after its last: so no step has a rate of 0, even for a final_frac of 0.

One cycle is a rise and a fall, in torch's parameterisation and in fastai's.

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

import math
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from tune_speed.components.schedules.base import (
    Cycle,
    Factors,
    Losses,
    WithWarmup,
    cosine,
    linear,
    share_before,
)


class Cosine(WithWarmup):
    """The rate falls along half a cosine, from the base rate to `final_frac` of it.

    Source: Loshchilov and Hutter, "SGDR", arXiv 1608.03983, equation 5, without restarts; equal to
    torch's CosineAnnealingLR(T_max=T - wT), after LinearLR if there is a warm-up.
    """

    final_frac: float = Field(default=0.0, ge=0, le=1)
    """Rate at the run's end, one step after its last, as a share of the base rate, in [0, 1]."""

    def factors(self, progress: float, *, step_frac: float, losses: Losses = ()) -> Factors:
        """Returns the warm-up's factor up to w, then the cosine's, and no momentum.

        That is final_frac + (1 - final_frac) (1 + cos(pi x)) / 2, x = (e - w) / (1 - w).
        """
        before = share_before(progress, step_frac=step_frac)
        if before < self.warmup_frac:
            return Factors(lr=self.warmup(before), momentum=None)
        x = (before - self.warmup_frac) / (1 - self.warmup_frac)
        return Factors(lr=cosine(1.0, self.final_frac, x), momentum=None)


class Exponential(WithWarmup):
    """The rate falls by the same factor in equal spans of the run.

    With f = final_frac it is f^x after a share x of what the warm-up leaves of the run. A decay by
    gamma an epoch over E epochs is final_frac = gamma^E: 0.975 an epoch is 0.603 over 20 epochs. It
    falls at each step, where torch's ExponentialLR, called once an epoch, has stairs.

    Source: the usual practice; equal to torch's ExponentialLR with gamma = f^(1/T), called at each
    of T steps.
    """

    final_frac: float = Field(default=0.1, gt=0, le=1)
    """Rate at the run's end, one step after its last, as a share of the base rate, in (0, 1]."""

    def factors(self, progress: float, *, step_frac: float, losses: Losses = ()) -> Factors:
        before = share_before(progress, step_frac=step_frac)
        x = max(0.0, (before - self.warmup_frac) / (1 - self.warmup_frac))
        return Factors(lr=self.warmup(before) * self.final_frac**x, momentum=None)


Milestone = Annotated[float, Field(gt=0, lt=1)]

# Share of a step by which a milestone may be missed and counts as met: k / T is rounded.
ROUNDING = 1e-6


class MultiStep(WithWarmup):
    """The rate is multiplied by `gamma` at each milestone.

    Source: He et al., arXiv 1512.03385, section 4.2; Goyal et al., arXiv 1706.02677, section 5.1;
    equal to torch's MultiStepLR where milestones are whole steps, also after a warm-up.
    """

    milestones: tuple[Milestone, ...] = (0.5, 0.75)
    """Shares of the whole run, warm-up included, at which the rate drops: a list in ascending
    order, each in (0, 1). The default is the ResNet paper's, 32k and 48k of 64k iterations."""
    gamma: float = Field(default=0.1, gt=0, le=1)
    """What each drop multiplies the rate by, in (0, 1]."""

    @field_validator("milestones", mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        # YAML and JSON have lists, which strict validation does not take for a tuple.
        if isinstance(value, list | tuple) and value:
            return tuple(value)
        raise ValueError("must be a list of one or more shares of the run, as in [0.5, 0.75]")

    @field_validator("milestones")
    @classmethod
    def _check_order(cls, milestones: tuple[float, ...]) -> tuple[float, ...]:
        if all(earlier < later for earlier, later in pairwise(milestones)):
            return milestones
        raise ValueError("must be in ascending order")

    @model_validator(mode="after")
    def _check_warmup(self) -> Self:
        if self.milestones[0] < self.warmup_frac:
            raise ValueError(
                "`milestones` must not lie in the warm-up, "
                f"but got {self.milestones[0]} and a `warmup_frac` of {self.warmup_frac}"
            )
        return self

    def factors(self, progress: float, *, step_frac: float, losses: Losses = ()) -> Factors:
        """Returns gamma^n times the warm-up's factor, after n milestones m <= e; no momentum."""
        before = share_before(progress, step_frac=step_frac)
        # Milestones count from the start of the *run*, as Goyal et al. count theirs (epochs 30, 60
        # and 80 of 90, of which 5 warm up). In torch's `SequentialLR([LinearLR, MultiStepLR])` they
        # count from the *end of the warm-up*: subtract it there.
        num_drops = sum(m <= before + ROUNDING * step_frac for m in self.milestones)
        return Factors(lr=self.warmup(before) * self.gamma**num_drops, momentum=None)


class Trapezoid(WithWarmup):
    """The rate rises in a straight line, stays, and falls in a straight line.

    Source: the speed-runs' shape: K. Jordan, "94% on CIFAR-10 in 3.29 Seconds", arXiv 2404.00498
    (triangle); Hägele et al., arXiv 2405.18392 (flat top, then a fall).
    """

    warmup_frac: float = Field(default=0.1, ge=0, lt=1)
    """Share of the run in which the rate rises to the base rate, in [0, 1); 0: no rise."""
    flat_frac: float = Field(default=0.5, ge=0, lt=1)
    """Share of the steps after the rise that have the base rate, in [0, 1); 0: a triangle."""
    final_frac: float = Field(default=0.0, ge=0, le=1)
    """Rate at the run's end, one step after its last, as a share of the base rate, in [0, 1]."""

    def factors(self, progress: float, *, step_frac: float, losses: Losses = ()) -> Factors:
        """Returns the factor on the trapezoid's side or top, and no momentum.

        That of the warm-up to w, 1 to c = w + flat_frac (1 - w), then
        1 + (final_frac - 1) (e - c) / (1 - c). `flat_frac` is a share of what the rise leaves, so
        that every value goes with every `warmup_frac`, also in a search.

            flat_frac 0                   the triangle of airbench94: 0.2 -> 1 at 0.23 -> 0.07
            flat_frac 0, warmup_frac 0    the straight line down of airbench94_muon
            flat_frac 0.6, warmup_frac 0  the shape of modded-nanogpt, whose last 40 % fall to 0.1
        """
        before = share_before(progress, step_frac=step_frac)
        fall_start = self.warmup_frac + self.flat_frac * (1 - self.warmup_frac)
        if before <= fall_start:
            return Factors(lr=self.warmup(before), momentum=None)
        x = (before - fall_start) / (1 - fall_start)
        return Factors(lr=linear(1.0, self.final_frac, x), momentum=None)


class ReduceOnPlateau(WithWarmup):
    """The rate is multiplied by `factor` when the validation loss has stopped falling.

    Source: torch's ReduceLROnPlateau, equal to it call by call, on the mean validation loss.
    """

    follows_loss: ClassVar[bool] = True

    factor: float = Field(default=0.1, gt=0, lt=1)
    """What each drop multiplies the rate by, in (0, 1)."""
    patience: int = Field(default=10, ge=0)
    """Evaluations in a row without a better loss before the next one drops the rate."""
    threshold: float = Field(default=1e-4, ge=0, lt=1)
    """Share of the best loss by which a loss must lie below it to be better, in [0, 1)."""
    cooldown: int = Field(default=0, ge=0)
    """Evaluations after a drop that do not count as without a better loss."""
    min_factor: float = Field(default=1e-8, gt=0, le=1)
    """Where drops end, as a factor of the base rate, in (0, 1]."""

    def factors(self, progress: float, *, step_frac: float, losses: Losses = ()) -> Factors:
        drops = max(self.min_factor, self.factor ** self.num_drops(losses))
        before = share_before(progress, step_frac=step_frac)
        return Factors(lr=self.warmup(before) * drops, momentum=None)

    def num_drops(self, losses: Losses) -> int:
        """Returns how often the rate has dropped after these evaluations, oldest first.

        Each is one call of torch's `ReduceLROnPlateau(mode="min", threshold_mode="rel")`, the
        untrained model's the first. A loss is better below best * (1 - threshold). When more than
        `patience` in a row are not, the rate drops, the count begins again, and the next `cooldown`
        evaluations count for nothing but the best. Deviations: `min_factor`, relative to the base
        rate, replaces torch's `min_lr` and its `eps`; losses count in a warm-up too.
        """
        best, num_bad, cooldown_left, num_drops = math.inf, 0, 0, 0
        for loss in losses:
            is_better = loss < best * (1 - self.threshold)
            best = loss if is_better else best
            num_bad = 0 if is_better or cooldown_left else num_bad + 1
            cooldown_left = max(0, cooldown_left - 1)
            if num_bad > self.patience:
                num_drops, num_bad, cooldown_left = num_drops + 1, 0, self.cooldown
        return num_drops


class OneCycle(Cycle):
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

    def factors(self, progress: float, *, step_frac: float, losses: Losses = ()) -> Factors:
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


class OneCycleFastai(Cycle):
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

    def factors(self, progress: float, *, step_frac: float, losses: Losses = ()) -> Factors:
        before = share_before(progress, step_frac=step_frac)
        top, ends = self.base_momentum, self.max_momentum
        if before < self.pct_start:
            x = before / self.pct_start
            return Factors(lr=cosine(1 / self.div, 1.0, x), momentum=cosine(ends, top, x))
        x = (before - self.pct_start) / (1 - self.pct_start)
        return Factors(lr=cosine(1.0, 1 / self.div_final, x), momentum=cosine(top, ends, x))
