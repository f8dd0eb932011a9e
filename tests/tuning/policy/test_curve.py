import math

import numpy as np
import pytest
from helpers.training.tiny import make_workload
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.core.records import Evaluation
from tune_speed.tuning.policy.curve import (
    NO_CURVE,
    PRIOR_RUNS,
    PRIOR_SLOPE,
    PRIOR_SPREAD,
    Curve,
    CurveTable,
    FloatArray,
    Mode,
    crossing,
    distance,
    gap,
    make_row,
)

PLACES = np.array([0.125, 0.25, 0.5, 1.0])
NAN = math.nan


def random_table(seed: int, *, num_whole: int = 6, num_stopped: int = 4) -> CurveTable:
    rng = np.random.default_rng(seed)
    rows = np.cumsum(rng.normal(0.5, 0.3, size=(num_whole + num_stopped, 4)), axis=1) - 3
    for row in rows[num_whole:]:
        row[rng.integers(1, 4) :] = NAN
    return CurveTable(PLACES, list(rows))


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (0.90, 0.0),
        (0.92, math.log(2)),  # One unit of two points above,
        (0.88, -math.log(2)),  # and below.
        (0.10, -math.log(41)),
    ],
)
def test_distance_to_the_target_is_a_logarithm_with_a_sign(metric: float, expected: float) -> None:
    assert distance(metric, 0.9) == pytest.approx(expected)


@given(a=st.floats(0, 1), b=st.floats(0, 1), target=st.floats(0.01, 1))
def test_nearer_metrics_have_larger_distances(a: float, b: float, target: float) -> None:
    assert (distance(a, target) < distance(b, target)) == (a < b) or abs(a - b) < 1e-12


def test_whole_run_keeps_its_last_value() -> None:
    row = make_row(PLACES, np.array([0.25, 0.4]), np.array([1.0, 2.5]), start=-1.0, is_whole=True)
    np.testing.assert_allclose(row, [0.0, 1.0, 2.5, 2.5])


def test_stopped_run_is_unknown_after_its_last_value() -> None:
    at, y = np.array([0.25, 0.5]), np.array([1.0, 2.0])
    row = make_row(PLACES, at, y, start=-1.0, is_whole=False)
    np.testing.assert_allclose(row, [0.0, 1.0, 2.0, NAN])


def test_run_without_evaluations_was_not_seen() -> None:
    none = np.empty(0)
    for is_whole in (True, False):
        assert np.isnan(make_row(PLACES, none, none, start=-1.0, is_whole=is_whole)).all()


def ridge(features: FloatArray, ends: FloatArray, *, doublings: float) -> FloatArray:
    """Returns (3,) coefficients: least squares with the prior as three more observations."""
    sd = np.array([1.0, 0.5, 0.5])
    prior = np.array([0.0, 1.0, PRIOR_SLOPE * doublings])
    rows, values = np.vstack([features, np.diag(1 / sd)]), np.append(ends, prior / sd)
    return np.linalg.lstsq(rows, values, rcond=None)[0]


def spread(
    features: FloatArray, ends: FloatArray, new: FloatArray, *, doublings: float, left: float
) -> float:
    """Returns the scale of a forecast: the residual's and the coefficients' uncertainty."""
    sd, prior = np.array([1.0, 0.5, 0.5]), np.array([0.0, 1.0, PRIOR_SLOPE * doublings])
    found = ridge(features, ends, doublings=doublings)
    squares = ((ends - features @ found) ** 2).sum() + (((found - prior) / sd) ** 2).sum()
    squares += PRIOR_RUNS * (PRIOR_SPREAD * left + 0.05) ** 2
    covariance = np.linalg.inv(features.T @ features + np.diag(sd**-2))
    variance = squares / (PRIOR_RUNS + len(ends))
    return math.sqrt(variance * (1 + new @ covariance @ new))


TINY = np.array(
    [
        [-3.0, -2.0, -1.5, -1.0],
        [-2.5, -2.4, -2.0, -1.9],
        [-3.0, -1.0, 0.2, 0.5],
        [-2.8, -1.7, NAN, NAN],
    ]
)


def test_forecast_of_a_stopped_run_is_a_regression_on_the_whole_ones() -> None:
    values, scales = CurveTable(PLACES, list(TINY)).extended([3])
    features = np.column_stack([np.ones(3), TINY[:3, 1], TINY[:3, 1] - TINY[:3, 0]])
    new = np.array([1.0, -1.7, -1.7 + 2.8])
    found = ridge(features, TINY[:3, 3], doublings=2.0)
    assert values[3, 0] == pytest.approx(new @ found)
    expected = spread(features, TINY[:3, 3], new, doublings=2.0, left=0.75)
    assert scales[3] == pytest.approx(expected)


def test_without_whole_runs_a_run_gains_a_share_of_its_last_doubling() -> None:
    values, _ = CurveTable(PLACES, [np.array([-3.0, -2.0, NAN, NAN])]).extended([2, 3])
    np.testing.assert_allclose(values, [[-2.0 + PRIOR_SLOPE, -2.0 + 2 * PRIOR_SLOPE]])


@given(seed=st.integers(0, 10**6))
def test_extending_leaves_seen_values_alone(seed: int) -> None:
    table = random_table(seed)
    before = table._table.copy()
    values, scales = table.extended([1, 2, 3])
    seen = ~np.isnan(before[:, 1:])
    np.testing.assert_array_equal(values[seen], before[:, 1:][seen])
    assert np.isfinite(values).all()
    assert ((scales == 0) == seen.all(axis=1)).all()
    np.testing.assert_array_equal(table._table, before)


def test_run_that_was_not_seen_stays_unknown() -> None:
    table = CurveTable(PLACES, [*TINY, np.full(4, NAN)])
    values, scales = table.extended([2, 3])
    assert np.isnan(values[-1]).all() and scales[-1] == 0
    assert len(table) == 5


def test_standing_counts_the_runs_seen_there_and_those_ahead() -> None:
    table = CurveTable(PLACES, [np.array([-3.0 + k, -2.0 + k, NAN, NAN]) for k in range(4)])
    # All gained as much; one more is running, and one was not seen so far.
    running = [(-0.5, -1.5)]
    assert table.standing(at=0.25, mine=(-0.7, -1.7), running=running) == (5, 3)
    unseen = CurveTable(PLACES, [*table._table, np.full(4, NAN)])
    assert unseen.standing(at=0.25, mine=(-0.7, -1.7), running=running) == (5, 3)


def test_run_that_gains_fast_stands_before_one_ahead_that_halted() -> None:
    table = CurveTable(PLACES, [np.array([-1.0, -1.0, NAN, NAN])])
    assert table.standing(at=0.25, mine=(-1.2, -3.0), running=[]) == (1, 0)
    assert table.standing(at=0.25, mine=(-1.2, -1.2), running=[]) == (1, 1)


@pytest.mark.parametrize(("at", "column"), [(0.01, 0), (0.25, 1), (0.26, 2), (1.0, 3), (7.0, 3)])
def test_column_is_the_first_place_at_or_after(at: float, column: int) -> None:
    assert CurveTable(PLACES, list(TINY)).column(at) == column


@pytest.mark.parametrize(("start", "left", "doublings"), [(1, 0.75, 2), (2, 0.5, 1)])
def test_forecast_without_any_whole_run_has_the_figures_of_its_prior(
    start: int, left: float, doublings: int
) -> None:
    row = np.array([-3.0, -2.0, -1.5, NAN])
    row[start + 1 :] = NAN
    values, scales = CurveTable(PLACES, [row]).extended([3])
    gained = row[start] - row[start - 1]
    assert values[0, 0] == pytest.approx(row[start] + 0.3 * doublings * gained)
    # Deviations a priori of α, β and γ: 1, a half and a half, in units of the residual's.
    features = np.array([1.0, row[start] / 2, gained / 2])
    assert scales[0] == pytest.approx((0.6 * left + 0.05) * math.sqrt(1 + features @ features))


def test_prior_of_the_residual_is_worth_four_runs() -> None:
    # Runs whose ends are what the prior expects leave no residual of their own.
    starts = np.array([-3.0, -2.5, -2.0])
    whole = [np.array([y - 1, y, y + 0.3, y + 0.6]) for y in starts]
    stopped = np.array([-3.0, -2.0, NAN, NAN])
    _, alone = CurveTable(PLACES, [stopped]).extended([3])
    _, scales = CurveTable(PLACES, [*whole, stopped]).extended([3])
    features = np.column_stack([np.ones(3), starts, np.ones(3)])
    new = np.array([1.0, -2.0, 1.0])
    spread = new @ np.linalg.inv(features.T @ features + np.diag([1.0, 4.0, 4.0])) @ new
    prior = new @ np.diag([1.0, 0.25, 0.25]) @ new
    expected = alone[0] * math.sqrt(4 / 7 * (1 + spread) / (1 + prior))
    assert scales[3] == pytest.approx(expected)
    assert (scales[:3] == 0).all()


def test_scale_is_the_largest_of_the_forecasts() -> None:
    table = random_table(3)
    _, far = table.extended([3])
    _, near = table.extended([2])
    for columns in ([2, 3], [3, 2]):
        _, both = table.extended(columns)
        np.testing.assert_allclose(both, np.maximum(near, far))
    assert (far > near).any()


@pytest.mark.parametrize("metric", [0.1, 0.5, 0.88, 0.9, 0.95])
def test_gap_is_what_is_missing_in_units_of_two_points(metric: float) -> None:
    assert gap(float(distance(metric, 0.9))) == pytest.approx(max(0.9 - metric, 0) / 0.02)


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
