"""The tasks of `bench_hard_search.py`: how many configurations meet their targets, and how soon."""

import numpy as np
import pytest
from hard_tasks import SHAPES, Hard, best_expected_s, drawn

from tune_speed.tuning.policy.curve import crossing


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_the_wanted_share_meets_the_target_and_none_sooner_than_the_best(shape: str) -> None:
    task = Hard(0.01, "fixed_length", 3, shape)
    configurations = drawn(shape, 3)
    curves = [task.curve(params) for params in configurations]
    met = [crossing(curve, target=task.target, mode=task.mode) is not None for curve in curves]
    assert np.mean(met) == pytest.approx(0.01, abs=1e-3)
    times_s = [task.predicted_cost(p) for p, hit in zip(configurations, met, strict=True) if hit]
    best_s = best_expected_s(task, 0.0)
    # A configuration has a little luck of its own, which does not change from run to run.
    assert best_s < 1.05 * min(times_s) and best_s < task.full_run_s / 3
