"""The trapezoid of the speed-runs: a linear rise, a flat top, a linear fall.

    symbol   meaning
    e        k / T, the share of the run before step k
    w        warmup_frac, where the rise ends
    c        w + flat_frac (1 - w), where the fall begins

The factor is warmup_start + (1 - warmup_start) e / w up to w, 1 up to c, and from there
1 + (final_frac - 1) (e - c) / (1 - c). `flat_frac` is a share of what the rise leaves, so that
every value goes with every `warmup_frac`, also in a search.

    flat_frac 0                   the triangle of airbench94: 0.2 -> 1 at 0.23 -> 0.07
    flat_frac 0, warmup_frac 0    the straight line down of airbench94_muon
    flat_frac 0.6, warmup_frac 0  the shape of modded-nanogpt, whose last 40 % fall to 0.1

Source: K. Jordan, "94% on CIFAR-10 in 3.29 Seconds", arXiv 2404.00498 (triangle); Hägele et al.,
arXiv 2405.18392 (flat top, then a fall).
"""

from collections.abc import Sequence

from pydantic import Field

from tune_speed.components.schedules.base import Factors, linear, share_before
from tune_speed.components.schedules.warmup import WithWarmup


class Trapezoid(WithWarmup):
    """The rate rises in a straight line, stays, and falls in a straight line.

    Source: the speed-runs' shape: K. Jordan, arXiv 2404.00498; Hägele et al., arXiv 2405.18392.
    """

    warmup_frac: float = Field(default=0.1, ge=0, lt=1)
    """Share of the run in which the rate rises to the base rate, in [0, 1); 0: no rise."""
    flat_frac: float = Field(default=0.5, ge=0, lt=1)
    """Share of the steps after the rise that have the base rate, in [0, 1); 0: a triangle."""
    final_frac: float = Field(default=0.0, ge=0, le=1)
    """Rate at the run's end, one step after its last, as a share of the base rate, in [0, 1]."""

    def factors(
        self, progress: float, *, step_frac: float, losses: Sequence[float] = ()
    ) -> Factors:
        """Returns the factor on the trapezoid's side or top, and no momentum."""
        before = share_before(progress, step_frac=step_frac)
        fall_start = self.warmup_frac + self.flat_frac * (1 - self.warmup_frac)
        if before <= fall_start:
            return Factors(lr=self.warmup(before), momentum=None)
        x = (before - fall_start) / (1 - fall_start)
        return Factors(lr=linear(1.0, self.final_frac, x), momentum=None)
