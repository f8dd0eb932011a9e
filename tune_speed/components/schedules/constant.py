"""The base rate, after a warm-up if there is one."""

from collections.abc import Sequence

from tune_speed.components.schedules.base import Factors, share_before
from tune_speed.components.schedules.warmup import WithWarmup


class Constant(WithWarmup):
    """Leaves the rate and the momentum as the optimizer has them, from the warm-up's end on.

    Source: SGD with one rate to tune; the warm-up of Goyal et al., arXiv 1706.02677.
    """

    def factors(
        self, progress: float, *, step_frac: float, losses: Sequence[float] = ()
    ) -> Factors:
        """Returns the warm-up's factor, or 1 without one, and no momentum."""
        return Factors(lr=self.warmup(share_before(progress, step_frac=step_frac)), momentum=None)
