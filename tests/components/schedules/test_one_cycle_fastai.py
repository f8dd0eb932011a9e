import math

import pytest
from grids import factors_of_run
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tune_speed.components.schedules.one_cycle import OneCycle, OneCycleFastai


def fastai_value(pct, pct_start, start, middle, end):
    """Returns fastai's `combine_scheds([pct_start, 1 - pct_start], [SchedCos, SchedCos])(pct)`."""
    bounds = [0.0, pct_start, 1.0]
    piece = max(i for i, bound in enumerate(bounds) if pct >= bound)
    pos = (pct - bounds[piece]) / (bounds[piece + 1] - bounds[piece])
    low, high = [(start, middle), (middle, end)][piece]
    return low + (1 + math.cos(math.pi * (1 - pos))) * (high - low) / 2


@given(
    num_steps=st.integers(1, 100),
    pct_start=st.floats(0.01, 0.99),
    div=st.floats(1, 100),
    div_final=st.floats(1, 1e6),
)
def test_one_cycle_fastai_equals_the_formula_of_fastai(num_steps, pct_start, div, div_final):
    config = OneCycleFastai(pct_start=pct_start, div=div, div_final=div_final)
    for k, (lr, momentum) in enumerate(factors_of_run(config, num_steps)):
        expected = fastai_value(k / num_steps, pct_start, 1 / div, 1.0, 1 / div_final)
        assert math.isclose(lr, expected, rel_tol=1e-9, abs_tol=1e-12)
        expected = fastai_value(k / num_steps, pct_start, 0.95, 0.85, 0.95)
        assert math.isclose(momentum, expected, rel_tol=1e-9)


def test_defaults_are_those_of_fit_one_cycle():
    ours = factors_of_run(OneCycleFastai(), 100_000)
    assert ours[0] == pytest.approx((0.04, 0.95))
    assert ours[25_000] == pytest.approx((1.0, 0.85))
    assert ours[-1] == pytest.approx((1e-5, 0.95), rel=1e-3)


def test_momentum_mirrors_the_rate():
    ours = factors_of_run(OneCycleFastai(div=100.0, div_final=100.0), 40)
    position = [(1 - lr) / (1 - 0.01) for lr, _ in ours]
    assert [momentum for _, momentum in ours] == pytest.approx([0.85 + 0.1 * x for x in position])


@pytest.mark.parametrize("num_steps", [100, 420, 1000])
def test_torch_parameterisation_comes_within_4_percent_of_fastai(num_steps):
    translated = OneCycle(pct_start=0.25, div_factor=25.0, final_div_factor=1e5 / 25)
    ours, theirs = (factors_of_run(c, num_steps) for c in (translated, OneCycleFastai()))
    gaps = [abs(a.lr - b.lr) for a, b in zip(ours, theirs, strict=True)]
    assert max(gaps) < 3.6 / num_steps


@pytest.mark.parametrize(
    ("field", "value"),
    [("pct_start", 1.0), ("div", 0.5), ("div_final", 0.5), ("max_momentum", 0.5)],
)
def test_one_cycle_fastai_refuses_values_that_make_no_cycle(field, value):
    with pytest.raises(ValidationError, match=field):
        OneCycleFastai(**{field: value})
