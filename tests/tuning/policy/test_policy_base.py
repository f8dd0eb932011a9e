import math

import numpy as np

from tune_speed.core.records import Status
from tune_speed.tuning.policy.base import Cost, Outcome, params_key
from tune_speed.tuning.policy.curve import Curve


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
