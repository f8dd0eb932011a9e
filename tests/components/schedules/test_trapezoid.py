import numpy as np
import pytest
from grids import factors_of_run, lr_of_run
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tune_speed.components.schedules.decays import Trapezoid

shares = st.floats(0, 0.99)


@given(
    num_steps=st.integers(1, 100),
    warmup=st.floats(0.01, 0.99),
    start=st.floats(0.01, 1),
    flat=shares,
    final=st.floats(0, 1),
)
def test_trapezoid_is_the_line_through_its_four_corners(num_steps, warmup, start, flat, final):
    config = Trapezoid(warmup_frac=warmup, warmup_start=start, flat_frac=flat, final_frac=final)
    corners = [0, warmup, warmup + flat * (1 - warmup), 1]
    expected = np.interp(np.arange(num_steps) / num_steps, corners, [start, 1, 1, final])
    assert lr_of_run(config, num_steps) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_triangle_of_airbench94():
    config = Trapezoid(warmup_frac=0.23, warmup_start=0.2, flat_frac=0.0, final_frac=0.07)
    rates = lr_of_run(config, 100)
    assert rates[0] == pytest.approx(0.2)
    assert rates[23] == max(rates) == pytest.approx(1.0)
    assert rates[99] == pytest.approx(0.07 + 0.93 / 77)


def test_straight_line_of_airbench94_muon():
    rates = lr_of_run(Trapezoid(warmup_frac=0.0, flat_frac=0.0), 8)
    assert rates == pytest.approx([1 - step / 8 for step in range(8)])


def test_flat_top_and_a_fall_over_the_last_two_fifths():
    rates = lr_of_run(Trapezoid(warmup_frac=0.0, flat_frac=0.6), 10)
    assert rates == pytest.approx([*7 * [1.0], 0.75, 0.5, 0.25])


def test_trapezoid_leaves_the_momentum_alone():
    assert {factors.momentum for factors in factors_of_run(Trapezoid(), 10)} == {None}


@pytest.mark.parametrize(
    ("field", "value"), [("flat_frac", 1.0), ("flat_frac", -0.1), ("final_frac", 1.5)]
)
def test_trapezoid_refuses_values_that_make_no_fall(field, value):
    with pytest.raises(ValidationError, match=field):
        Trapezoid(**{field: value})
