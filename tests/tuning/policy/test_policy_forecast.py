"""What the rest of a search is likely to bring, drawn from the model that proposes its trials."""

import math

import numpy as np
import pytest
from repeated_runs import SHORT, Log, ended, log_of, restored

from tune_speed.tuning.policy.curve_table import distance, metric_of
from tune_speed.tuning.policy.forecast import Paths, range_of

CLOSE = log_of([*SHORT, *[(x, 5, end) for x, end in ((0.1, 0.86), (0.4, 0.89), (0.8, 0.85))]])
FAR = [ended(n, x, epochs, 0.5) for n, (x, epochs) in enumerate((i / 8, 1 + i) for i in range(9))]


def paths(log: Log, *, left_s: float = 200.0, left_runs: float = math.inf) -> Paths:
    found: Paths | None = restored(log).forecast(left_s=left_s, left_runs=left_runs)
    assert found is not None
    return found


def chance(found: Paths) -> float:
    return float(np.isfinite(found.first_hit_s()).mean())


def test_a_metric_has_the_distance_that_it_is_made_of() -> None:
    values = np.array([0.2, 0.89, 0.9, 0.93])
    np.testing.assert_allclose(metric_of(distance(values, 0.9), 0.9), values)


def test_paths_use_no_more_than_the_budget() -> None:
    found = paths(FAR, left_s=150.0)
    clock = np.where(np.isfinite(found.spent_s), found.spent_s, 0.0)
    assert 120.0 < clock.max() <= 150.0
    assert paths(CLOSE, left_runs=3).ends.shape[1] == 3
    assert np.isneginf(found.ends[np.isinf(found.spent_s)]).all()


def test_more_budget_makes_a_hit_likelier_and_a_path_with_less_is_its_beginning() -> None:
    found = paths(CLOSE, left_s=200.0)
    part = found.until(20.0, math.inf)
    assert 0 < chance(part) < chance(found)
    assert part.first_hit_s().min() == found.first_hit_s().min()
    assert found.until(math.inf, 1).ends.shape[1] == 1


def test_a_target_that_all_trials_are_far_from_is_less_likely_met() -> None:
    assert chance(paths(FAR, left_s=40.0)) < chance(paths(CLOSE, left_s=40.0))


def test_runs_that_go_on_end_first() -> None:
    policy = restored(CLOSE)
    began = policy.ask()
    assert began is not None
    found = policy.forecast(left_s=200.0, left_runs=math.inf)
    assert found is not None
    # Half of them is left to do, the same in all paths.
    assert len(np.unique(found.spent_s[:, 0])) == 1
    assert found.spent_s[0, 0] == pytest.approx(began.params["epochs"])


@pytest.mark.parametrize(("mode", "least"), [("fixed_length", 3), ("anytime", 6)])
def test_there_is_no_forecast_before_some_trials_went_to_their_end(mode: str, least: int) -> None:
    for number in (least - 1, least):
        policy = restored(CLOSE[:number], mode=mode)
        found = policy.forecast(left_s=100.0, left_runs=math.inf)
        assert (found is None) == (number < least)


def test_four_fifths_lie_within_a_range_whether_or_not_some_never_happen() -> None:
    values = np.arange(1.0, 101.0)
    assert range_of(values) == (10.0, 50.0, 90.0)
    seldom = np.where(values > 60, np.inf, values)
    # From a fifth to never: four fifths.
    assert range_of(seldom) == (20.0, 50.0, math.inf)
    assert range_of(np.where(values > 15, np.inf, values)).low == math.inf
