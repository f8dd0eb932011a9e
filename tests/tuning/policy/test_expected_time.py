import math

import numpy as np
import pytest
from scipy.special import ndtr

from tune_speed.tuning.policy.curve import GAP_UNIT, distance
from tune_speed.tuning.policy.expected_time import gain_of_run, log_expected_s, noise_at

ENDS = np.array([1.0])


def rows(*values: float) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    return np.array(values, dtype=float)[:, None]


@pytest.mark.parametrize("mean", [0.70, 0.88, 0.8999, 0.9, 0.91, 0.99])
def test_a_run_far_from_the_target_meets_it_as_seldom_as_its_metric_s_spread_says(
    mean: float,
) -> None:
    target, spread = 0.9, 0.015
    y = distance(np.array([mean]), target)
    chance = ndtr(y / noise_at(y, spread / GAP_UNIT))
    assert chance == pytest.approx(ndtr([(mean - target) / spread]), rel=1e-4, abs=1e-12)


def test_expected_time_of_a_known_length_is_cost_over_chance() -> None:
    mean, sd, costs = rows(0.0, 1.0, -2.0), np.array([0.5, 1.0, 1.0]), np.array([10.0, 20.0, 3.0])
    found = np.exp(log_expected_s(mean, sd, 0.0, log_cost=np.log(costs), fractions=ENDS))
    chances = np.array([0.5, 0.8413447460685429, 0.022750131948179195])  # Of the normal tables.
    assert found == pytest.approx(costs / chances * np.maximum(1.0, 0.9 / chances))


def test_expected_time_of_a_free_length_is_what_restarts_take() -> None:
    """Runs meet the target at times whose distribution is linear between places; many are drawn."""
    fractions = np.array([1.0, 0.75, 0.5])
    reached = np.array([0.8, 0.6, 0.2])
    mean = np.sqrt(2.0) * np.array([[0.5951160814, 0.1791434546, -0.5951160814]])
    assert ndtr(mean) == pytest.approx(reached[None], abs=1e-6)
    found = float(
        np.exp(log_expected_s(mean, np.ones(1), 0.0, log_cost=None, fractions=fractions))[0]
    )
    rng = np.random.default_rng(0)
    places = np.array([0.25, 0.5, 0.75, 1.0])
    draws = np.interp(rng.random(400_000), [0.0, 0.2, 0.6, 0.8], places, right=math.inf)
    # Each restart after a fixed time is a policy; the best one counts.
    restarted = [np.minimum(draws, end).mean() / (draws <= end).mean() for end in places[1:]]
    assert found == pytest.approx(min(restarted), rel=0.01)


def test_crossing_that_is_certain_takes_its_time() -> None:
    fractions = np.array([1.0, 0.9, 0.8, 0.7])
    mean = np.array([[5.0, 5.0, -5.0, -5.0]])
    share = np.exp(log_expected_s(mean, np.full(1, 1e-6), 0.0, log_cost=None, fractions=fractions))
    assert share[0] == pytest.approx(0.85, abs=1e-6)  # Between the places where it is and is not.


@pytest.mark.parametrize("mean", [-3.0, -1.0, 0.0, 1.0])
def test_without_noise_the_gain_is_the_expected_improvement(mean: float) -> None:
    """A run shows f: at f ≥ 0 the time is its cost, and else for ever."""
    found = gain_of_run(
        rows(mean),
        np.array([0.8]),
        0.0,
        log_cost=np.log([5.0]),
        fractions=ENDS,
        to_beat=np.log([12.0]),
    )
    assert found[0] == pytest.approx(ndtr(mean / 0.8) * math.log(12 / 5), rel=0.12, abs=1e-6)


def test_with_noise_the_gain_is_that_of_many_runs_drawn() -> None:
    mean, sd, noise, cost, to_beat = 0.3, 0.6, 0.5, 7.0, 9.0
    found = gain_of_run(
        rows(mean),
        np.array([sd]),
        noise,
        log_cost=np.log([cost]),
        fractions=ENDS,
        to_beat=np.log([to_beat]),
    )
    rng = np.random.default_rng(1)
    here = noise_at(np.array(mean), noise)
    seen = rng.normal(mean, sd, 200_000) + rng.normal(0.0, here, 200_000)
    weight = sd**2 / (sd**2 + here**2)
    after = mean + weight * (seen - mean)
    chance = ndtr(after / np.hypot(sd * np.sqrt(1 - weight), noise_at(after, noise)))
    doubtful = np.maximum(np.log(0.9 / chance), 0.0)
    gains = np.maximum(math.log(to_beat) - np.log(cost / chance) - doubtful, 0.0)
    assert found[0] == pytest.approx(gains.mean(), rel=0.02)


def test_what_is_known_has_nothing_to_gain_from_another_run() -> None:
    found = gain_of_run(
        rows(1.0),
        np.array([1e-6]),
        0.5,
        log_cost=np.log([7.0]),
        fractions=ENDS,
        to_beat=np.log([7.0]),
    )
    assert found[0] == 0.0
