"""Linear warm-up, which several schedules begin with; and the base rate after it.

    symbol   meaning
    T        optimizer steps of the run
    e        k / T, the share of the run before step k
    w        warmup_frac
    f        warmup_start, the first step's factor

The factor is f + (1 - f) e / w for e < w, and 1 from there on: it rises at every step, and step wT
is the first at the full rate. With f = 1 / k and the optimizer's rate k times that of the
reference batch (the linear scaling rule, `lr_per_examples`), this is
`eta_t = eta + (k eta - eta) t / T_w`.

Source: Goyal et al., "Accurate, Large Minibatch SGD", arXiv 1706.02677, section 2.2; equal to
torch.optim.lr_scheduler.LinearLR(start_factor=f, total_iters=wT).
"""

from collections.abc import Sequence

from pydantic import Field

from tune_speed.components.schedules.base import Factors, ScheduleConfig, linear, share_before


class WithWarmup(ScheduleConfig):
    """A schedule that may begin with a linear warm-up."""

    warmup_frac: float = Field(default=0.0, ge=0, lt=1)
    """Share of the run in which the rate rises to the base rate, step by step, in [0, 1); 0: none.
    Goyal et al.: 5 epochs of 90."""
    warmup_start: float = Field(default=0.1, gt=0, le=1)
    """Factor of the first step where there is a warm-up, in (0, 1]. Goyal et al.: 1/k where the
    batch is k times that of the reference."""

    def warmup(self, before: float) -> float:
        """Returns the warm-up's factor where `before` is the share of the run before the step."""
        if before >= self.warmup_frac:
            return 1.0
        return linear(self.warmup_start, 1.0, before / self.warmup_frac)


class Constant(WithWarmup):
    """Leaves the rate and the momentum as the optimizer has them, from the warm-up's end on.

    Source: SGD with one rate to tune; the warm-up of Goyal et al., arXiv 1706.02677.
    """

    def factors(
        self, progress: float, *, step_frac: float, losses: Sequence[float] = ()
    ) -> Factors:
        """Returns the warm-up's factor, or 1 without one, and no momentum."""
        return Factors(lr=self.warmup(share_before(progress, step_frac=step_frac)), momentum=None)
