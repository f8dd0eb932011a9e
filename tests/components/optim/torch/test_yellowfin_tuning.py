import numpy as np
import pytest
import torch

from tune_speed.components.optim.torch.yellowfin import (
    Landscape,
    new_record,
    one_minus_root,
    single_step,
)


def scalars(*values):
    return [torch.tensor(value, dtype=torch.float64) for value in values]


def momentum_and_rate(low, high, variance, distance):
    return [
        float(value) for value in single_step(Landscape(*scalars(low, high, variance, distance)))
    ]


@pytest.mark.parametrize(
    ("variance", "distance", "curvature", "root"),
    [(1.0, 1.0, 1.0, 0.4102454877), (100.0, 0.1, 0.5, 0.97697)],
)
def test_the_cubic_has_the_roots_of_the_sheet(variance, distance, curvature, root):
    p = distance**2 * curvature**2 / (2 * variance)
    x = 1 - float(one_minus_root(*scalars(p)))
    assert x == pytest.approx(root, abs=1e-5 if root > 0.9 else 1e-10)
    assert abs(p * x - (1 - x) ** 3) < 1e-9
    momentum, rate = momentum_and_rate(curvature, curvature, variance, distance)
    assert momentum == pytest.approx(x**2, rel=1e-12)
    assert rate == pytest.approx((1 - x) ** 2 / curvature, rel=1e-12)


@pytest.mark.parametrize("exponent", range(-17, 13, 2))
def test_the_root_keeps_its_digits_for_every_size_of_p(exponent):
    p = 10.0**exponent
    s = float(one_minus_root(*scalars(p)))
    assert 0 < s < 1
    # p (1 - s) = s^3, with 1 - s from numpy's companion matrix in the variable x.
    assert s**3 / p == pytest.approx(1 - s, rel=1e-6, abs=1e-12)
    roots = np.roots([1.0, 0.0, p, -p])
    real = roots[np.abs(roots.imag) < 1e-9 * np.abs(roots)].real
    assert np.min(np.abs(real - s)) < 1e-6 * s


@pytest.mark.parametrize(
    ("variance", "distance", "low"), [(1.0, 1.0, 1.0), (100.0, 0.1, 0.5), (0.01, 2.0, 3.0)]
)
def test_no_point_of_a_grid_is_better_than_the_minimiser(variance, distance, low):
    momentum, rate = momentum_and_rate(low, low, variance, distance)
    grid = np.linspace(0, 1, 100_001) ** 2
    costs = grid * distance**2 + ((1 - np.sqrt(grid)) ** 2 / low) ** 2 * variance
    assert momentum * distance**2 + rate**2 * variance <= costs.min() * (1 + 1e-9)


def test_a_wide_range_of_curvature_sets_a_floor_to_the_momentum():
    momentum, rate = momentum_and_rate(1.0, 81.0, 1e-6, 1.0)
    assert momentum == pytest.approx(0.8**2)
    assert rate == pytest.approx(0.2**2)


def test_vanishing_gradients_give_a_finite_rate_and_a_momentum_below_one():
    momentum, rate = momentum_and_rate(1e-6, 1e-6, 1e-6, 0.0)
    assert 0.99 < momentum < 1
    assert 0 < rate < 1


def test_the_memory_before_the_first_step_is_empty():
    record = new_record(window=7, device=torch.device("cpu"))
    assert record["squared_norms"].shape == (7,)
    assert record["num_steps"] == 0
    assert not record["averages"].any()
