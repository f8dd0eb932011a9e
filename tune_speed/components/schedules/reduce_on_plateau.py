"""Reduce on plateau: the rate falls where the validation loss no longer does.

Each evaluation is one call of torch's `ReduceLROnPlateau(mode="min", threshold_mode="rel")`, the
untrained model's the first. A loss is better if it lies below best * (1 - threshold). When more
than `patience` losses in a row are not, the rate is multiplied by `factor`, the count begins again,
and the next `cooldown` evaluations count for nothing but the best. The drop acts from the first
step after the evaluation.

Deviations: `min_factor`, relative to the base rate, replaces torch's `min_lr` and its `eps` (no
change of a rate below 1e-8). In a warm-up losses count too, and its factor multiplies the drops'.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from tune_speed.components.schedules.base import Factors, share_before
from tune_speed.components.schedules.warmup import WithWarmup


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

    def factors(
        self, progress: float, *, step_frac: float, losses: Sequence[float] = ()
    ) -> Factors:
        """Returns the factor of the warm-up and of the drops so far, and no momentum."""
        drops = max(self.min_factor, self.factor ** self.num_drops(losses))
        before = share_before(progress, step_frac=step_frac)
        return Factors(lr=self.warmup(before) * drops, momentum=None)

    def num_drops(self, losses: Sequence[float]) -> int:
        """Returns how often the rate has dropped after these evaluations, oldest first."""
        best, num_bad, cooldown_left, num_drops = math.inf, 0, 0, 0
        for loss in losses:
            is_better = loss < best * (1 - self.threshold)
            best = loss if is_better else best
            num_bad = 0 if is_better or cooldown_left else num_bad + 1
            cooldown_left = max(0, cooldown_left - 1)
            if num_bad > self.patience:
                num_drops, num_bad, cooldown_left = num_drops + 1, 0, self.cooldown
        return num_drops
