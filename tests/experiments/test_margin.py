import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.core.targets import Target
from tune_speed.experiments.run_summary import (
    Slope,
    estimate_slope,
    needed_mean,
    suggestion,
)

TARGET = Target(value=0.94)
METRICS = [0.9387, 0.9400, 0.9402, 0.9412, 0.9414]
"""Mean 0.9403, SD 0.00108 (squares 256, 9, 1, 81, 121 times 1e-8: 468e-8 / 4); 4 of 5 meet 0.94."""


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


def test_slope_of_three_points_is_least_squares_by_hand() -> None:
    # x = 0, 1, 2 and y = 0.90, 0.92, 0.93: slope 0.015, residuals -1, 2, -1 times 1/600, so the
    # squared error is 6 / 600^2 / (3 - 2) / 2.
    points = [(1.0, 0.90), (math.e, 0.92), (math.e**2, 0.93)]
    error = math.sqrt(6 / 600**2 / 2)
    # With one degree of freedom the 95 % point is 6.31, and 6.31 * 0.00289 exceeds 0.015.
    assert estimate_slope(points) is None
    found = estimate_slope([*points, *points])
    assert found is not None
    assert found.per_ln == pytest.approx(0.015)
    assert found.standard_error == pytest.approx(error * math.sqrt(2 / 4 / 2))


def test_slope_that_is_not_clearly_positive_is_none() -> None:
    assert estimate_slope([(1.0, 0.9), (2.0, 0.91)]) is None
    assert estimate_slope([(2.0, 0.90), (2.0, 0.91), (2.0, 0.92)]) is None
    assert estimate_slope([(1.0, 0.93), (2.0, 0.92), (4.0, 0.91), (8.0, 0.90)]) is None


@given(st.floats(0.001, 0.1), st.floats(0.5, 0.9), st.integers(3, 12))
def test_slope_of_an_exact_line_is_found(slope: float, start: float, n: int) -> None:
    points = [(float(length), start + slope * math.log(length)) for length in range(1, n + 1)]
    found = estimate_slope(points)
    assert found == Slope(pytest.approx(slope), pytest.approx(0.0, abs=1e-6))


def test_suggestion_is_one_line_with_both_times() -> None:
    # t with 4 degrees of freedom is 2.131847: exp((2.131847 · √1.2 · SD - 0.0003) / 0.02) = 1.117.
    line = suggestion(METRICS, target=TARGET, run_s=2.4, slope=0.02)
    assert line == (
        "4 of 5 met the target: 0.9403 on average, SD 0.0011. A mean of 0.9425 is met by 95% of "
        "runs; at +0.0200 per ln(length) that takes runs 1.12× as long: 2.82 s expected, against "
        "3 s with restarts."
    )


def test_suggestion_to_a_recipe_that_never_hits_names_no_time() -> None:
    line = suggestion([0.9385, 0.9390, 0.9395], target=TARGET, run_s=2.0, slope=0.0092)
    assert line is not None and line.endswith("against runs that never meet it.")


def test_nothing_is_suggested_where_nothing_is_gained() -> None:
    sure = [0.95, 0.951, 0.949]
    assert suggestion(sure, target=TARGET, run_s=2.0, slope=0.0092) is None
    # The line would have to be climbed at 0.0005 per ln(length): many times as long.
    assert suggestion(METRICS, target=TARGET, run_s=2.0, slope=0.0005) is None
    assert suggestion(METRICS[:2], target=TARGET, run_s=2.0, slope=0.02) is None
    assert suggestion(METRICS, target=TARGET, run_s=2.0, slope=0.0) is None
    # 1.3 times as long costs more than the fifth run that misses.
    assert suggestion(METRICS, target=TARGET, run_s=2.0, slope=0.0092) is None


@given(
    st.lists(st.floats(0.90, 0.98), min_size=3, max_size=10),
    st.floats(1e-5, 0.2),
)
def test_what_is_suggested_is_longer_and_cheaper(metrics: list[float], slope: float) -> None:
    line = suggestion(metrics, target=TARGET, run_s=1.0, slope=slope)
    if line is None:
        return
    figures = [float(text) for text in re.findall(r"([\d.]+)(?:× as long| s )", line)]
    factor, longer_s, *present_s = figures
    assert 1 <= factor <= 2
    assert longer_s <= min(present_s, default=math.inf)


def test_where_less_is_better_the_suggestion_mirrors_that_of_more() -> None:
    """Losses 1 - m under a target of 1 - a are met by the same runs, and fall as those rise."""
    at_most = Target(metric="loss", mode="min", value=1 - 0.94)
    rising = suggestion(METRICS, target=TARGET, run_s=2.4, slope=0.02)
    falling = suggestion([1 - m for m in METRICS], target=at_most, run_s=2.4, slope=0.02)
    assert rising is not None and falling is not None
    assert falling.startswith("4 of 5 met the target: 0.0597 on average")
    assert "-0.0200 per ln(length)" in falling
    assert falling.rpartition("that takes runs")[2] == rising.rpartition("that takes runs")[2]
