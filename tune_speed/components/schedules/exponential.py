"""The rate falls by the same factor in equal spans of the run."""

from collections.abc import Sequence

from pydantic import Field

from tune_speed.components.schedules.base import Factors, share_before
from tune_speed.components.schedules.warmup import WithWarmup


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

    def factors(
        self, progress: float, *, step_frac: float, losses: Sequence[float] = ()
    ) -> Factors:
        """Returns the warm-up's factor or the decay's, and no momentum."""
        before = share_before(progress, step_frac=step_frac)
        x = max(0.0, (before - self.warmup_frac) / (1 - self.warmup_frac))
        return Factors(lr=self.warmup(before) * self.final_frac**x, momentum=None)
