"""Who leads, who can no longer lead, and what an outcome says."""

import math

import numpy as np
import pytest

from tune_speed.core.records import Status
from tune_speed.tuning.policy.base import (
    Cost,
    Leader,
    Outcome,
    better,
    params_key,
    trial_number,
)
from tune_speed.tuning.policy.curve import Curve


def reached(train_s: float) -> Outcome:
    return Outcome(Status.REACHED, train_s)


def test_faster_trial_takes_the_lead_and_of_equal_ones_the_earlier() -> None:
    leader = better(None, "t0005", reached(10.0))
    assert leader == Leader("t0005", 10.0)
    assert better(leader, "t0009", reached(9.9)) == Leader("t0009", 9.9)
    assert better(leader, "t0001", reached(10.1)) == leader
    assert better(leader, "t0010", reached(10.0)) == leader
    assert better(leader, "t0004", reached(10.0)) == Leader("t0004", 10.0)
    assert better(leader, "t10000", reached(10.0)) == leader


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.REACHED])
def test_trial_that_missed_never_leads(status: Status) -> None:
    outcome = Outcome(status, 1.0)
    assert better(None, "t0000", outcome) is None
    assert better(Leader("t0005", 10.0), "t0000", outcome) == Leader("t0005", 10.0)


def test_best_metric_is_the_largest_that_was_measured() -> None:
    seconds = np.arange(1.0, 4.0)
    curve = Curve(seconds, np.array([0.2, 0.5, math.nan]))
    assert Outcome(Status.DIVERGED, 3.0, curve).best_metric == 0.5
    assert Outcome(Status.DIVERGED, 3.0, Curve(seconds, np.full(3, math.nan))).best_metric is None
    assert Outcome(Status.OOM, 0.0).best_metric is None


def test_likely_cost_is_the_guess_where_only_a_bound_is_known() -> None:
    assert Cost(3.0).likely_s == 3.0
    assert Cost(3.0, guess_s=5.0).likely_s == 5.0


def test_keys_of_configurations_know_no_order() -> None:
    assert params_key({"a": 1, "b": 2}) == params_key({"b": 2, "a": 1})
    assert params_key({"a": 1}) != params_key({"a": 2})
    assert trial_number("t0007") == 7
