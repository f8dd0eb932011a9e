"""Stated chances, against draws of what they assume and against counting alone."""

import numpy as np
import pytest
from scipy.stats import beta

from tune_speed.core.text import Interval, chance_text
from tune_speed.tuning.policy.chances import DOUBT, LEAST_FREEDOM, TAILS, chances


def stated(mean: float, sd: float, *, hits: int, runs: int, repeats: float = 3.0) -> Interval:
    counts = {"hits": np.array([hits]), "runs": np.array([runs])}
    (found,) = chances(np.array([mean]), np.array([sd]), noise_sd=0.5, repeats=repeats, **counts)
    return found


@pytest.mark.parametrize(
    ("mean", "sd", "hits", "runs"), [(0.4, 0.3, 1, 1), (1.0, 0.2, 4, 4), (0.1, 0.6, 3, 8)]
)
def test_a_chance_and_its_interval_are_those_of_draws(
    mean: float, sd: float, hits: int, runs: int
) -> None:
    rng = np.random.default_rng(0)
    num, freedom = 400_000, LEAST_FREEDOM + 3.0
    sigma = 0.5 * np.sqrt(freedom / rng.chisquare(freedom, num))
    f = mean + sd * rng.normal(size=num)
    # The chance of each draw, by the luck of many runs: Student's t, sampled and sorted.
    luck = np.sort(rng.standard_t(TAILS, size=num))
    p = np.searchsorted(luck, np.sign(f) * np.expm1(np.abs(f)) / sigma) / num
    counted = rng.beta(hits + 0.5, runs - hits + 0.5, num)
    p = np.concatenate([p, counted])
    weights = np.repeat([1 - DOUBT, DOUBT], num)
    order = np.argsort(p)
    reached = np.cumsum(weights[order]) / weights.sum()
    low, high = p[order][np.searchsorted(reached, (0.025, 0.975))]
    found = stated(mean, sd, hits=hits, runs=runs)
    expected = (weights @ p / weights.sum(), low, high)
    assert (found.value, *found.ends) == pytest.approx(expected, abs=0.02)


def test_however_sure_the_model_is_a_share_is_what_counting_says() -> None:
    found = stated(60.0, 0.1, hits=4, runs=4)
    by_counting = beta(4.5, 0.5)
    assert found.value == pytest.approx(1 - DOUBT + DOUBT * by_counting.mean(), abs=1e-3)
    assert found.low == pytest.approx(by_counting.ppf(0.025 / DOUBT), abs=0.01)


@pytest.mark.parametrize("runs", [1, 2, 4, 8, 20])
def test_no_number_of_hits_makes_the_next_run_certain(runs: int) -> None:
    found = stated(9.0, 0.1, hits=runs, runs=runs, repeats=40.0)
    assert found.low is not None and found.high is not None
    assert 0.4 < found.low < found.value < 1.0 and found.high - found.low > 1e-2
    assert "100%" not in found.text(chance_text)


def test_misses_of_its_own_lower_a_chance_and_runs_narrow_its_interval() -> None:
    few, many = (stated(0.5, 0.4, hits=3 * n, runs=4 * n) for n in (1, 8))
    assert stated(0.5, 0.4, hits=1, runs=4).value < few.value
    assert many.high - many.low < few.high - few.low  # type: ignore[operator]
