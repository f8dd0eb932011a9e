"""When a curve met its target, against the workload's own rule."""

import numpy as np
import pytest
from helpers.training.tiny import make_workload
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.core.records import Evaluation
from tune_speed.tuning.policy.curve import NO_CURVE, Curve, Mode, crossing

TARGET = 0.9
NUM_TRAIN = 100
metrics = st.lists(st.sampled_from([0.0, 0.5, 0.89, 0.9, 0.95, 1.0]), max_size=9)
modes = st.sampled_from(["fixed_length", "anytime"])


def evaluation(epoch: int, train_s: float, accuracy: float) -> Evaluation:
    return Evaluation(
        step=10 * epoch,
        samples=NUM_TRAIN * epoch,
        epoch=epoch,
        train_s=train_s,
        accuracy=accuracy,
        macro_f1=0.0,
        loss=None,
    )


def curve_of(metric: list[float]) -> Curve:
    return Curve(1.5 * np.arange(1, len(metric) + 1), np.array(metric))


@given(metric=metrics, mode=modes)
def test_crossing_is_the_workloads_time_to_target(metric: list[float], mode: Mode) -> None:
    curve = curve_of(metric)
    evaluations = [
        evaluation(epoch, float(train_s), accuracy)
        for epoch, (train_s, accuracy) in enumerate(zip(*curve, strict=True), start=1)
    ]
    workload = make_workload(target=TARGET, mode=mode)
    expected = workload.time_to_target(evaluations, num_train=NUM_TRAIN, at_end=True)
    hit = crossing(curve, target=TARGET, mode=mode)
    assert (None if hit is None else curve.train_s[hit]) == expected


@pytest.mark.parametrize("mode", ["fixed_length", "anytime"])
def test_run_without_evaluations_never_crosses(mode: Mode) -> None:
    assert crossing(NO_CURVE, target=TARGET, mode=mode) is None
    assert NO_CURVE.end_s == 0.0


@pytest.mark.parametrize(
    ("mode", "expected"), [("fixed_length", None), ("anytime", None)], ids=["end", "pair"]
)
def test_metric_that_is_not_a_number_holds_nothing(mode: Mode, expected: int | None) -> None:
    assert crossing(curve_of([0.95, np.nan]), target=TARGET, mode=mode) == expected


def test_metric_between_evaluations_lies_on_the_line_between_them() -> None:
    curve = Curve(np.array([1.0, 3.0]), np.array([0.2, 0.6]))
    np.testing.assert_allclose(curve.at(np.array([0.0, 1.0, 2.0, 9.0])), [0.2, 0.2, 0.4, 0.6])
    assert curve.end_s == 3.0
