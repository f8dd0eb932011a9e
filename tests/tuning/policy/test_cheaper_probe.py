"""What a look is worth: against a simulation of it, and at the ends of what it can tell."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import norm

from tune_speed.tuning.policy.acquisition import NUM_LEVELS, Posterior, expected_rise, neighbours

DRAWS = 400_000


def simulated_rise(run: Posterior, correlation: float) -> float:
    """Returns E[(p' − p)⁺] / p from drawn looks, each followed by the posterior of a normal."""
    rng = np.random.default_rng(0)
    luck = run.noise_sd
    distance = rng.normal(run.mean, run.sd, size=DRAWS)
    # A look of unit variance that has this correlation with the distance.
    look = correlation * (distance - run.mean) / run.sd
    look += math.sqrt(1 - correlation**2) * rng.normal(size=DRAWS)
    mean = run.mean + correlation * run.sd * look
    sd = math.hypot(run.sd * math.sqrt(1 - correlation**2), luck)
    after = norm.sf(run.threshold, mean, sd)
    before = norm.sf(run.threshold, run.mean, math.hypot(run.sd, luck))
    return float(np.maximum(after - before, 0.0).mean() / before)


@pytest.mark.parametrize("correlation", [0.2, 0.6, 0.95])
@pytest.mark.parametrize("mean", [-1.0, 0.0, 0.7])
def test_rise_is_that_of_simulated_looks(mean: float, correlation: float) -> None:
    run = Posterior(mean, sd=0.8, noise_sd=0.3, threshold=0.2)
    rise = expected_rise(run, np.array([correlation]))[0]
    assert rise == pytest.approx(simulated_rise(run, correlation), rel=0.02)


def test_rise_of_what_is_hardly_likely_is_seen_too() -> None:
    run = Posterior(-0.25, sd=0.0625, noise_sd=0.03125, threshold=0.0)
    half, all_ = expected_rise(run, np.array([0.5, 1.0]))
    chance = norm.sf(0.25, 0, math.hypot(0.0625, 0.03125))
    # With all told, the chance that the distance itself is enough, spread by luck alone.
    z = np.linspace(-8, 8, 2_000_001)
    told, left = 0.999 * 0.0625, math.hypot(0.0625 * math.sqrt(1 - 0.999**2), 0.03125)
    after = norm.cdf((told * z - 0.25) / left)
    exact = np.trapezoid(np.maximum(after - chance, 0) * norm.pdf(z), z) / chance
    assert all_ == pytest.approx(exact, rel=0.1)
    assert 0.3 < half < all_


def test_look_that_tells_nothing_raises_nothing() -> None:
    run = Posterior(-0.5, sd=1.0, noise_sd=0.1, threshold=0.0)
    assert expected_rise(run, np.array([0.0]))[0] == pytest.approx(0.0, abs=1e-9)


def test_look_that_tells_all_raises_by_the_chance_that_was_missing() -> None:
    run = Posterior(-0.5, sd=1.0, noise_sd=0.0, threshold=0.0)
    chance = norm.sf(0.5)
    rise = expected_rise(run, np.array([1.0]))[0]
    # E[(1{y > θ} − p)⁺] / p = p · (1 − p) / p, but for a last thousandth of correlation.
    assert rise == pytest.approx(1 - chance, rel=0.05)


@given(
    mean=st.floats(-3, 3),
    sd=st.floats(0.05, 3),
    noise_sd=st.floats(0.01, 1),
    low=st.floats(0, 1),
    more=st.floats(0, 1),
)
def test_more_telling_look_raises_no_less(
    mean: float, sd: float, noise_sd: float, low: float, more: float
) -> None:
    # Of what is less likely, 64 draws are too few to say how much it could rise.
    assume(norm.sf(0.0, mean, math.hypot(sd, noise_sd)) > 1e-4)
    run = Posterior(mean, sd, noise_sd, threshold=0.0)
    high = low + more * (1 - low)
    rises = expected_rise(run, np.array([low, high, -high]))
    assert rises[0] <= rises[1] + 0.05 * max(1.0, rises[1])
    assert rises[1] == pytest.approx(rises[2])
    assert (rises > -1e-9).all()


def test_neighbours_differ_in_one_parameter_each() -> None:
    units = np.array([0.11, 0.52, 0.93])
    beside = neighbours(units)
    assert beside.shape == (3 * NUM_LEVELS, 3)
    assert ((beside != units).sum(axis=1) == 1).all()
    for i in range(3):
        own = beside[beside[:, i] != units[i], i]
        np.testing.assert_allclose(np.sort(own), (np.arange(NUM_LEVELS) + 0.5) / NUM_LEVELS)
