"""Evaluation by an average of the weights over the last steps."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from tune_speed.components.speedups.base import Averager, Slot, SpeedupConfig

if TYPE_CHECKING:
    from torch import nn


class Ema(SpeedupConfig):
    """An exponential moving average of weights and batch statistics is evaluated in their place.

    With the half-life h as a share of the run, weights of x of the run ago count 0.5^(x/h) of the
    present ones. So the same setting means the same for a run of any length, which a decay per
    step does not. Weights before the first step count nothing: the average is over steps.
    For a decay of d a step and T steps, h = ln 0.5 / (T · ln d): 0.999 in 2,000 steps is 0.35.

    Training continues with its own weights, unlike with Lookahead.

    Source: Polyak and Juditsky 1992; half-life as in mosaicml/composer, EMA; timm's ModelEmaV3.
    """

    slot: ClassVar[Slot] = "averaging"
    untimed_fields = frozenset({"half_life"})
    conflicts: ClassVar[dict[str, str]] = {
        "boosted": "weights of a stage that was not trained yet are no part of a sensible average.",
    }

    half_life: float = Field(default=0.02, gt=0, le=1)
    """Share of the run after which weights count half."""
    every: int = Field(default=5, ge=1, le=10_000)
    """Optimizer steps between two updates of the average; the run's last step always counts."""

    @property
    def period(self) -> int:
        """Steps from one update to the next."""
        return self.every

    def averager(self, model: "nn.Module") -> Averager | None:
        """Returns what averages the weights from now on."""
        from tune_speed.components.speedups.modules.ema import MovingAverage

        return MovingAverage(model, half_life=self.half_life, every=self.every)
