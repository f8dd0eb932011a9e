"""Multi-step decay: the rate falls by a factor at given shares of the run.

The factor of step k is gamma^n, times that of the warm-up, where n is the number of milestones m
with m <= k / T: the drop comes with the first step that begins at the milestone or after it.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from tune_speed.components.schedules.base import Factors, share_before
from tune_speed.components.schedules.warmup import WithWarmup

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

    def factors(
        self, progress: float, *, step_frac: float, losses: Sequence[float] = ()
    ) -> Factors:
        """Returns the factor of the warm-up and of the drops so far, and no momentum."""
        before = share_before(progress, step_frac=step_frac)
        # Milestones count from the start of the *run*, as Goyal et al. count theirs (epochs 30, 60
        # and 80 of 90, of which 5 warm up). In torch's `SequentialLR([LinearLR, MultiStepLR])` they
        # count from the *end of the warm-up*: subtract it there.
        num_drops = sum(m <= before + ROUNDING * step_frac for m in self.milestones)
        return Factors(lr=self.warmup(before) * self.gamma**num_drops, momentum=None)
