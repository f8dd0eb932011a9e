"""When a target holds, and what counts as its time."""

import math
from dataclasses import astuple
from typing import Any

import pytest
from helpers.making import make_evaluation
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tune_speed.core.records import Evaluation, Recommended
from tune_speed.core.targets import Target, Task
from tune_speed.core.text import Interval

CURVE = [0.5, 0.91, 0.7, 0.9, 0.95, 0.8]


def at(accuracies: list[float]) -> list[Evaluation]:
    return [make_evaluation(train_s=i + 1.0, accuracy=a) for i, a in enumerate(accuracies)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"value": 0.0}, "more than 0 and at most 1 for accuracy"),
        ({"value": 1.01}, "more than 0 and at most 1 for accuracy"),
        ({"value": math.inf, "metric": "auc"}, "finite"),
        ({"value": 0.9, "mode": "min"}, "mode must be max for accuracy"),
        ({"value": 0.9, "mode": "min", "metric": "top5_accuracy"}, "mode must be max"),
        ({"value": 0.9, "metric": "loss"}, "mode must be min for loss"),
        ({"value": 0.9, "metric": "no metric"}, "pattern"),
    ],
)
def test_target_that_cannot_be_met_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Target(**fields)


def test_target_at_either_end_of_its_range_is_taken() -> None:
    assert Target(value=1.0).words == "accuracy ≥ 1"
    assert Target(value=-3.5, metric="auc", mode="min").words == "auc ≤ -3.5"
    assert Target(value=2.0, metric="loss", mode="min").words == "loss ≤ 2"


def test_target_holds_at_its_value_and_never_for_what_was_not_measured() -> None:
    most, least = Target(value=0.9), Target(value=0.9, metric="loss", mode="min")
    assert [most.holds(x) for x in (0.89, 0.9, 0.91, math.nan)] == [False, True, True, False]
    assert [least.holds(x) for x in (0.89, 0.9, 0.91, math.nan)] == [True, True, False, False]


@given(
    st.floats(-1e3, 1e3).filter(lambda value: abs(value) > 1e-3),
    st.floats(-1e3, 1e3),
    st.sampled_from(["max", "min"]),
)
def test_score_reaches_its_goal_where_the_target_holds(
    value: float, metric: float, mode: Any
) -> None:
    target = Target(metric="auc", value=value, mode=mode)
    assert target.goal == target.score(value) == 1.0
    if abs(metric - value) > 1e-6:
        assert (target.score(metric) > target.goal) == target.holds(metric)


def test_score_is_the_share_itself_or_relative_to_the_target() -> None:
    share = Target(value=0.9)
    assert (share.score(0.4), share.goal) == (0.4, 0.9)
    assert Target(metric="auc", value=-2.0).score(-3.0) == 0.5
    assert Target(metric="loss", value=0.5, mode="min").score(0.75) == 0.5
    # A target of 0 leaves the metric's own unit.
    assert Target(metric="auc", value=0.0).score(3.0) == 4.0


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("value", [0.9, 2.0, -3.0, 0.0])
def test_a_score_and_its_metric_are_inverse(value: float, mode: Any) -> None:
    target = Target(metric="auc", value=value, mode=mode)
    assert target.metric_of(target.score(0.37)) == pytest.approx(0.37)
    assert Target(value=0.9).metric_of(0.4) == 0.4


def test_what_is_recommended_by_scores_is_told_by_the_metric_with_its_ends_in_order() -> None:
    loss = Target(metric="loss", value=2.0, mode="min", within_s=9.0)
    scores = Interval(1.8, 1.7, 1.85)
    best = Recommended(trial_id="t0000", runs=1, hits=1, expected_s=5.0, metric=scores)
    told = best.of_scores(loss.metric_of)
    # 2 − (score − 1) · 2.
    assert told.metric is not None and astuple(told.metric) == pytest.approx((0.4, 0.3, 0.6))
    assert "end at 0.4000 (0.3000 to 0.6000)" in told.text


def test_a_target_with_a_time_seeks_the_best_metric_and_is_said_so() -> None:
    soonest, best = Target(value=0.9), Target(value=0.001, within_s=60.0)
    assert (soonest.seeks_best, best.seeks_best) == (False, True)
    assert (soonest.label, best.label) == ("accuracy-0.9", "accuracy-within-60s")
    assert (soonest.met, best.met) == ("target_met", "ended_in_time")
    assert (soonest.did_meet, best.did_meet) == ("met the target", "ended in time")
    assert (soonest.aim, best.aim) == ("target accuracy ≥ 0.9", "best accuracy within 60 s")


def test_of_a_fixed_length_only_the_end_counts() -> None:
    task = Task(target=Target(value=0.9))
    assert task.crossing(at([0.5, 0.95]), at_end=True) == 2.0
    assert task.crossing(at([0.5, 0.95]), at_end=False) is None
    assert task.crossing(at([0.95, 0.5]), at_end=True) is None
    assert task.crossing([], at_end=True) is None


@pytest.mark.parametrize("at_end", [True, False])
def test_at_any_time_the_first_of_two_in_a_row_counts(at_end: bool) -> None:
    task = Task(target=Target(value=0.9), mode="anytime")
    assert task.crossing(at(CURVE), at_end=at_end) == 4.0
    assert task.crossing(at(CURVE[:4]), at_end=at_end) is None
    assert task.crossing(at([0.95]), at_end=at_end) is None
    assert task.crossing([], at_end=at_end) is None


def test_metric_that_was_not_measured_never_holds() -> None:
    task = Task(target=Target(value=0.5, metric="auc"))
    assert math.isnan(task.metric_of(make_evaluation()))
    assert task.crossing([make_evaluation()], at_end=True) is None
    measured = make_evaluation().model_copy(update={"values": {"auc": 0.75}})
    assert (task.metric_of(measured), task.score_of(measured)) == (0.75, 1.5)
    assert task.crossing([measured], at_end=True) == 1.0


@pytest.mark.parametrize("max_train_s", [0.0, -1.0])
def test_limit_of_a_run_is_more_than_nothing(max_train_s: float) -> None:
    with pytest.raises(ValidationError, match="greater than 0"):
        Task(target=Target(value=0.9), max_train_s=max_train_s)
