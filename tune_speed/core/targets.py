"""What counts as done, whoever trains: a metric's target, when it holds, and the time limit."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tune_speed.core.config import Config, left_out
from tune_speed.core.records import Evaluation
from tune_speed.core.words import StopKind

SHARES = ("accuracy", "macro_f1", "micro_f1", "top5_accuracy")
"""Metrics in [0, 1] of which more is better."""
SIGNS = {"max": "≥", "min": "≤"}


class Target(Config):
    """What counts as done."""

    metric: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$")] = "accuracy"
    """Metric on the part that is evaluated: `accuracy`, `macro_f1`, `micro_f1`, `top5_accuracy`,
    `loss`, or one of your own."""
    value: float
    """Worst value of the metric that counts as reached; of a share, in (0, 1]."""
    mode: Literal["max", "min"] = "max"
    """Whether more is better, or less, as of a loss."""
    within_s: Annotated[float, Field(gt=0)] | None = left_out(None)
    """What counts is not the time but the metric of runs that end within this [s]: the better, the
    better. `value` is then the worst that counts at all. The short form is `goal`."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if not math.isfinite(self.value):
            raise ValueError("value must be a finite number")
        if self.is_share and not 0 < self.value <= 1:
            raise ValueError(f"value must be more than 0 and at most 1 for {self.metric}")
        if self.is_share and self.mode != "max":
            raise ValueError(f"mode must be max for {self.metric}: more of it is better")
        if self.metric == "loss" and self.mode != "min":
            raise ValueError("mode must be min for loss: less of it is better")
        return self

    def at(self, value: float) -> "Target":
        """Returns the target of another value. Raises: ValueError if it is none."""
        return Target(metric=self.metric, value=value, mode=self.mode, within_s=self.within_s)

    @property
    def is_share(self) -> bool:
        return self.metric in SHARES

    @property
    def seeks_best(self) -> bool:
        """Whether the best metric within a time counts (`within_s`, a study's `goal`), no time."""
        return self.within_s is not None

    @property
    def words(self) -> str:
        """The target for people: `accuracy ≥ 0.97`, or `best accuracy within 60 s`."""
        if self.seeks_best:
            return f"best {self.metric} within {self.within_s:g} s"
        return f"{self.metric} {SIGNS[self.mode]} {self.value:g}"

    @property
    def label(self) -> str:
        """Metric and value, `accuracy-0.97`, or metric and time, `accuracy-within-60s`."""
        within = f"within-{self.within_s:g}s" if self.seeks_best else f"{self.value:g}"
        return f"{self.metric}-{within}"

    @property
    def met(self) -> StopKind:
        return StopKind.ENDED_IN_TIME if self.seeks_best else StopKind.TARGET_MET

    @property
    def did_meet(self) -> str:
        return "ended in time" if self.seeks_best else "met the target"

    @property
    def aim(self) -> str:
        """What a search is for: `target accuracy ≥ 0.97`, or `best accuracy within 60 s`."""
        return self.words if self.seeks_best else f"target {self.words}"

    def holds(self, metric: float) -> bool:
        # A metric that was not measured is NaN, with which both comparisons are false.
        return metric >= self.value if self.mode == "max" else metric <= self.value

    def compared(self, metric: float) -> dict[str, Any]:
        """Returns the figures of how a value compares: `accuracy 0.9712 ≥ 0.97`."""
        score = {"metric": self.metric, "value": metric}
        if self.seeks_best and self.holds(metric):
            return score
        sign = SIGNS[self.mode] if self.holds(metric) else "not " + SIGNS[self.mode]
        return {**score, "sign": sign, "target": self.value}

    def score(self, metric: float) -> float:
        """Returns a value of the metric as a policy takes it: more is better, `goal` is enough.

        A share m is taken as it is. Any other metric is set in proportion to its target a,

            1 + (m − a) / |a|    where more is better,    1 − (m − a) / |a|    where less is,

        so that 1 meets the target and 0 is as far from it as nothing is from a share of 1. A target
        of 0 leaves the metric's own unit.
        """
        if self.is_share:
            return metric
        sign = 1.0 if self.mode == "max" else -1.0
        return 1.0 + sign * (metric - self.value) / (abs(self.value) or 1.0)

    def metric_of(self, score: float) -> float:
        """Returns the value of the metric that has a score: the inverse of `score`."""
        if self.is_share:
            return score
        sign = 1.0 if self.mode == "max" else -1.0
        return self.value + sign * (score - 1.0) * (abs(self.value) or 1.0)

    @property
    def goal(self) -> float:
        return self.value if self.is_share else 1.0


def hardest(values: Sequence[float], mode: str) -> float:
    return max(values) if mode == "max" else min(values)


class Task(Config):
    """What must be reached, and in which time."""

    target: Target
    """What counts as done."""
    mode: Literal["fixed_length", "anytime"] = "fixed_length"
    """`fixed_length`: the length is the recipe's, the target must hold at the end.
    `anytime`: the target is met at the first of two consecutive evaluations that hold it."""
    max_train_s: Annotated[float, Field(gt=0)] = 600.0
    """Limit of one run on the training clock [s]; a run is stopped at the first step that ends past
    it, and has not met the target, whatever it reached. Where its steps were timed before, a run of
    fixed length that would take longer for certain ends before it trains."""

    @property
    def label(self) -> str:
        raise NotImplementedError

    @model_validator(mode="after")
    def _ends_in_time(self) -> Self:
        limit_s = self.target.within_s
        if limit_s is None:
            return self
        if self.mode != "fixed_length":
            raise ValueError("mode must be fixed_length where the target has within_s")
        if limit_s != self.max_train_s:
            raise ValueError(f"max_train_s must be target.within_s, {limit_s:g}")
        return self

    def metric_of(self, evaluation: Evaluation) -> float:
        """Returns the target metric's value in `evaluation`, NaN where it has none."""
        metric = evaluation.value(self.target.metric)
        return math.nan if metric is None else metric

    def score_of(self, evaluation: Evaluation) -> float:
        """Returns how good `evaluation` is, as a policy takes it: see `Target.score`."""
        return self.target.score(self.metric_of(evaluation))

    def crossing(self, on_grid: Sequence[Evaluation], *, at_end: bool) -> float | None:
        """Returns the training clock [s] at which the target held, or None if it does not (yet).

        `fixed_length`: at the last evaluation, and only if the run is `at_end`; passes on the way
        count for nothing. `anytime`: at the first of two consecutive evaluations of the grid that
        hold the target. A single pass at the very end is not confirmed and does not count.
        """
        if self.mode == "fixed_length":
            last = on_grid[-1] if at_end and on_grid else None
            return last.train_s if last is not None and self._holds(last) else None
        pairs = pairwise(on_grid)
        return next((e.train_s for e, then in pairs if self._holds(e) and self._holds(then)), None)

    def _holds(self, evaluation: Evaluation) -> bool:
        return self.target.holds(self.metric_of(evaluation))
