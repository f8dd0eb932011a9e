"""Cosine decay, after a warm-up if there is one.

With e = k / T, the share of the run before step k, and w = warmup_frac, the factor from w on is
final_frac + (1 - final_frac) (1 + cos(pi x)) / 2, x = (e - w) / (1 - w). The run's *end*, one step
after its last, would have x = 1: so no step has a rate of 0, even for a final_frac of 0.

Source: Loshchilov and Hutter, "SGDR", arXiv 1608.03983, equation 5, without restarts; equal to
torch.optim.lr_scheduler.CosineAnnealingLR(T_max=T - wT), after LinearLR if there is a warm-up.
"""

from collections.abc import Sequence

from pydantic import Field

from tune_speed.components.schedules.base import Factors, cosine, share_before
from tune_speed.components.schedules.warmup import WithWarmup


class Cosine(WithWarmup):
    """The rate falls along half a cosine, from the base rate to `final_frac` of it.

    Source: Loshchilov and Hutter, arXiv 1608.03983, without restarts; equal to torch's
    CosineAnnealingLR.
    """

    final_frac: float = Field(default=0.0, ge=0, le=1)
    """Rate at the run's end, one step after its last, as a share of the base rate, in [0, 1]."""

    def factors(
        self, progress: float, *, step_frac: float, losses: Sequence[float] = ()
    ) -> Factors:
        """Returns the warm-up's factor or the cosine's, and no momentum."""
        before = share_before(progress, step_frac=step_frac)
        if before < self.warmup_frac:
            return Factors(lr=self.warmup(before), momentum=None)
        x = (before - self.warmup_frac) / (1 - self.warmup_frac)
        return Factors(lr=cosine(1.0, self.final_frac, x), momentum=None)
