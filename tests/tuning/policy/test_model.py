"""What the model says of runs that it has not seen, where far misses mislead or tell the way."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import ndtr

from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.curve import FloatArray
from tune_speed.tuning.policy.encoding import Encoder
from tune_speed.tuning.policy.gaussian_process import GaussianProcess, Scales, noise_pattern
from tune_speed.tuning.policy.model import Evidence, Model, draw_together
from tune_speed.tuning.policy.settings import AcquisitionSettings

ENCODER = Encoder(SearchSpace.from_tree({name: {"low": 0.0, "high": 1.0} for name in ("x", "y")}))


def cliff(units: FloatArray) -> FloatArray:
    """Returns distances that are flat just below the target, but far off where x is small."""
    ripple = 0.08 * np.sin(40 * units[:, 0]) * np.sin(37 * units[:, 1])
    return np.where(units[:, 0] < 0.45, -3.5 + units[:, 0], -0.15 + ripple)


def slope(units: FloatArray) -> FloatArray:
    """Returns distances that rise all the way to the target, and a little past it."""
    return -3.5 + 3.7 * (1 - np.hypot(units[:, 0] - 0.8, units[:, 1] - 0.7))


def model_of(
    ends: Callable[[FloatArray], FloatArray], num: int, *, seed: int, drawn_from: int = 20
) -> Model:
    rng = np.random.default_rng(seed)
    units = rng.random((num, 2))
    found = ends(units) + 0.05 * rng.normal(size=num)
    evidence = Evidence(
        units=units,
        costs=np.full(num, 1.0),
        distances=found[:, None],
        variances=np.zeros(num),
        ranks=found,
        fits=np.ones(num, dtype=bool),
    )
    settings = AcquisitionSettings(drawn_from=drawn_from)
    return Model(ENCODER, evidence, has_cost=False, settings=settings, rng=rng)


def overrated(model: Model) -> float:
    """Returns the chance that the model gives the ten likeliest of 500 configurations."""
    mean, sd = model.process.predict(np.random.default_rng(99).random((500, 2)))
    chances = ndtr(mean[:, 0] / np.hypot(sd, model.process.noise_sd))
    return float(np.sort(chances)[-10:].mean())


def test_far_misses_beside_a_plateau_do_not_promise_hits() -> None:
    """None of the configurations meets the target in one run of ten."""
    assert cliff(np.random.default_rng(0).random((10_000, 2))).max() < -0.05
    plain = [overrated(model_of(cliff, 30, seed=seed, drawn_from=99)) for seed in range(5)]
    chosen = [overrated(model_of(cliff, 30, seed=seed)) for seed in range(5)]
    assert np.median(plain) > 0.5
    assert np.median(chosen) < 0.2


@pytest.mark.parametrize("seed", range(5))
def test_far_misses_that_tell_the_way_still_do(seed: int) -> None:
    found, plain = model_of(slope, 30, seed=seed), model_of(slope, 30, seed=seed, drawn_from=99)
    assert overrated(found) == pytest.approx(overrated(plain), abs=0.05)
    best, _ = found.process.predict(np.array([[0.8, 0.7], [0.1, 0.1]]))
    assert best[0, 0] > best[1, 0] + 1.0


def test_few_runs_decide_nothing() -> None:
    there = np.random.default_rng(98).random((50, 2))
    found, plain = (model_of(cliff, 19, seed=0, drawn_from=n).process for n in (20, 99))
    np.testing.assert_array_equal(found.predict(there)[0], plain.predict(there)[0])


@pytest.mark.parametrize("unit", [0.1, 0.5])
def test_only_the_worse_half_is_drawn_together_and_keeps_its_order(unit: float) -> None:
    y = np.sort(np.random.default_rng(0).normal(-1.5, 1.0, 40))
    distances = np.column_stack([y, y - 0.3])
    median = float(np.median(y))
    drawn, slopes = draw_together(distances, below=median, unit=unit)
    np.testing.assert_array_equal(drawn[distances >= median], distances[distances >= median])
    assert (np.diff(drawn, axis=0) > 0).all()
    assert (drawn[distances < median] > distances[distances < median]).all()
    far = y < median - 0.01
    numeric = np.gradient(drawn[:, 0], y)[1:-1]
    np.testing.assert_allclose(numeric[far[1:-1]], slopes[1:-1][far[1:-1]], rtol=0.3)
    assert (slopes[y >= median] == 1.0).all()


def test_distance_below_the_mark_is_drawn_together_by_its_logarithm() -> None:
    y = np.array([[0.1], [0.4], [-0.2], [-0.5]])
    drawn, slopes = draw_together(y, below=-0.2, unit=0.1)
    assert drawn[:, 0] == pytest.approx([0.1, 0.4, -0.2, -0.2 - 0.1 * math.log(4.0)])
    assert slopes == pytest.approx([1.0, 1.0, 1.0, 0.25])
    same, ones = draw_together(y, below=-math.inf, unit=0.1)
    np.testing.assert_array_equal(same, y)
    np.testing.assert_array_equal(ones, 1.0)


def test_each_left_out_run_is_foretold_as_by_the_process_of_the_others() -> None:
    """Against the conditional of the joint normal distribution, written out."""
    rng = np.random.default_rng(3)
    points, values = rng.random((9, 2)), rng.normal(size=9)
    points[5] = points[4]
    variances, shares = rng.random(9) / 10, rng.random(9) / 2 + 0.5
    scales = Scales(0.1, math.log(0.4), np.log([0.5, 0.8]))
    process = GaussianProcess(points, values, variances, scales, shares=shares)
    mean, sd = process.leave_one_out()
    r = np.sqrt((((points[:, None] - points) / np.exp(scales.log_lengths)) ** 2).sum(-1))
    kernel = math.exp(0.2) * (1 + math.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-math.sqrt(5) * r)
    unit = values.std()
    covariance = kernel + 0.16 * noise_pattern(points, np.sqrt(shares), scales.own)
    covariance = unit**2 * (covariance + np.diag(variances / unit**2 + 1e-8))
    for i in range(9):
        others = np.arange(9) != i
        weights = np.linalg.solve(covariance[np.ix_(others, others)], covariance[others, i])
        centred = values[others] - values.mean()
        assert mean[i] == pytest.approx(values.mean() + weights @ centred)
        assert sd[i] ** 2 == pytest.approx(covariance[i, i] - weights @ covariance[others, i])
