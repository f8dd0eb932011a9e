"""`goal` of a study file: what a search seeks in place of the least time to its target.

It is the best value of a metric within a training time, and is written out as the target and the
time limit of `workload` once overrides are known:

    goal: {maximise: accuracy, within: 60s}

is `target: {metric: accuracy, value: 0.001, within_s: 60.0}` and `max_train_s: 60.0`.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from tune_speed.core.config import Config
from tune_speed.core.targets import SHARES
from tune_speed.study.mistake import Mistake, shown
from tune_speed.study.settings import parse_duration_s
from tune_speed.study.yaml import Source

WORST_SHARE = 0.001


class GoalConfig(Config):
    """The best metric that a training of a given time reaches."""

    maximise: Annotated[str, Field(min_length=1)] | None = None
    """Metric of which more is better, such as `accuracy`."""
    minimise: Annotated[str, Field(min_length=1)] | None = None
    """Metric of which less is better, such as `loss`."""
    within: str | float = Field(union_mode="left_to_right")
    """Training time: of a run that would take longer, nothing counts."""
    worst: float | None = None
    """Worst value that counts; null: 0.001. A metric that is no share needs one, about which its
    differences are judged."""

    @field_validator("within")
    @classmethod
    def _is_duration(cls, duration: str | float) -> str | float:
        parse_duration_s(duration)
        return duration

    @model_validator(mode="after")
    def _has_one_metric(self) -> Self:
        if (self.maximise is None) == (self.minimise is None):
            raise ValueError("exactly one of maximise and minimise must be given")
        if self.worst is None and self.maximise not in SHARES:
            raise ValueError(f"worst must be given for {self.maximise or self.minimise}")
        return self

    def target(self) -> dict[str, Any]:
        """Returns the target of a workload that says the same."""
        return {
            "metric": self.maximise or self.minimise,
            "value": WORST_SHARE if self.worst is None else self.worst,
            "mode": "min" if self.maximise is None else "max",
            "within_s": parse_duration_s(self.within),
        }


def goal_of(tree: Any) -> GoalConfig | None:
    """Returns the goal of a study's tree; None without one, or one with mistakes."""
    goal = tree.get("goal") if isinstance(tree, Mapping) else None
    try:
        return None if goal is None else GoalConfig.model_validate(goal)
    except ValidationError:  # The schema says what is wrong.
        return None


def with_goal(source: Source) -> Source:
    """Returns `source` with its goal written out; as it is without one, or one with mistakes."""
    goal = goal_of(source.tree)
    if goal is None:
        return source
    target = goal.target()
    place = source.place(("goal",))
    source = source.with_value(("workload", "target"), target, place=place)
    return source.with_value(("workload", "max_train_s"), target["within_s"], place=place)


def goal_mistakes(source: Source) -> Iterator[Mistake]:
    """Yields what a file, as it was written, says twice."""
    tree = source.tree
    if not isinstance(tree, Mapping) or tree.get("goal") is None:
        return
    workload = tree.get("workload")
    for name in ("target", "max_train_s"):
        if isinstance(workload, Mapping) and name in workload:
            must = "must be left out where `goal` is given, which says it"
            yield Mistake(("workload", name), must, shown(workload[name]))
