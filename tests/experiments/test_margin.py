import math

import numpy as np
import pytest

from tune_speed.experiments.run_summary import needed_mean


def test_needed_mean_is_students_prediction_bound_above_the_target() -> None:
    # Tables of t: 2.919986 with 2 degrees of freedom, 1.729133 with 19.
    three, twenty = 2.919986 * math.sqrt(4 / 3), 1.729133 * math.sqrt(21 / 20)
    assert needed_mean(0.94, 0.0013, n=3) == pytest.approx(0.94 + three * 0.0013, rel=1e-9)
    assert needed_mean(0.94, 0.0013, n=20) == pytest.approx(0.94 + twenty * 0.0013, rel=1e-9)
    assert needed_mean(0.94, 0.0, n=5) == 0.94


@pytest.mark.parametrize("n", [3, 5, 10, 20])
def test_95_percent_of_longer_runs_meet_the_target(n: int) -> None:
    """Runs that are lengthened by what n of them say; with normal quantiles 0.86 do, not 0.95."""
    normal, target, hits = np.random.default_rng(n), 0.94, []
    for metrics in 0.935 + 0.002 * normal.standard_normal((8_000, n)):
        deviation = float(metrics.std(ddof=1))
        needed = needed_mean(target, deviation, n=n)
        raised = needed - metrics.mean()
        hits.append(0.935 + raised + 0.002 * normal.standard_normal() >= target)
    assert np.mean(hits) == pytest.approx(0.95, abs=0.006)
