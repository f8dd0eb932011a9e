import math
from itertools import pairwise

import pytest
import torch
from grids import factors_of_run
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.optim.lr_scheduler import OneCycleLR

from tune_speed.components.schedules.one_cycle import OneCycle, OneCycleFastai

fracs = st.floats(0.001, 0.999)
configs = st.builds(
    OneCycle,
    pct_start=fracs,
    div_factor=st.floats(1, 100),
    final_div_factor=st.floats(1, 1e5),
    anneal=st.sampled_from(["cos", "linear"]),
    base_momentum=st.floats(0, 0.9),
    max_momentum=st.floats(0.9, 0.99),
)


def our_rates(config, num_steps):
    progress = [(k + 1) / num_steps for k in range(num_steps)]
    return [config.factors(p, step_frac=1 / num_steps) for p in progress]


def torch_rates(config, num_steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0, momentum=0.9)
    schedule = OneCycleLR(
        optimizer,
        max_lr=1.0,
        total_steps=num_steps,
        pct_start=config.pct_start,
        anneal_strategy=config.anneal,
        div_factor=config.div_factor,
        final_div_factor=config.final_div_factor,
        base_momentum=config.base_momentum,
        max_momentum=config.max_momentum,
    )
    for _ in range(num_steps):
        yield optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]
        optimizer.step()
        schedule.step()


@settings(max_examples=40)
@given(config=configs, num_steps=st.integers(1, 60))
@example(config=OneCycle(), num_steps=1)
@example(config=OneCycle(), num_steps=2)
@example(config=OneCycle(pct_start=0.5), num_steps=3)
@example(config=OneCycle(), num_steps=1000)
@example(config=OneCycle(anneal="linear", div_factor=1.0), num_steps=7)
def test_one_cycle_equals_torch_step_by_step(config, num_steps):
    # Where the rise is as long as one step, torch divides by zero: see the next tests.
    assume(abs(config.pct_start * num_steps - 1) > 1e-6)
    for ours, (lr, momentum) in zip(
        our_rates(config, num_steps), torch_rates(config, num_steps), strict=True
    ):
        assert math.isclose(ours.lr, lr, rel_tol=1e-12, abs_tol=1e-15)
        assert math.isclose(ours.momentum, momentum, rel_tol=1e-12, abs_tol=1e-15)


@pytest.mark.parametrize("num_steps", [2, 5, 10])
def test_a_rise_of_one_step_begins_at_its_peak_where_torch_divides_by_zero(num_steps):
    config = OneCycle(pct_start=1 / num_steps)
    with pytest.raises(ZeroDivisionError):
        list(torch_rates(config, num_steps))
    ours = our_rates(config, num_steps)
    assert ours[0] == (1.0, config.base_momentum)
    assert ours[-1].lr == pytest.approx(1 / 25 / 1e4)
    assert all(a.lr > b.lr for a, b in pairwise(ours))


def test_a_single_step_gets_the_last_rate_as_in_torch():
    (only,) = our_rates(OneCycle(div_factor=10.0, final_div_factor=100.0), 1)
    assert only == (pytest.approx(1e-3), 0.95)


def test_momentum_is_left_alone_unless_it_is_cycled():
    config = OneCycle(cycle_momentum=False)
    assert {rates.momentum for rates in our_rates(config, 10)} == {None}


def test_linear_one_cycle_by_hand():
    config = OneCycle(anneal="linear", pct_start=0.5, div_factor=2.0, final_div_factor=5.0)
    rates = [rates.lr for rates in our_rates(config, 8)]
    rise, fall = [1 / 2, 4 / 6, 5 / 6, 1], [0.775, 0.55, 0.325, 0.1]
    assert rates == pytest.approx(rise + fall)


def test_fastai_defaults_follow_from_the_documented_translation():
    # fastai: rate max/25 -> max -> max/1e5, peak after a quarter; final divisor 1e5 / 25.
    config = OneCycle(pct_start=0.25, div_factor=25.0, final_div_factor=1e5 / 25)
    ours = our_rates(config, 100)
    assert ours[0] == pytest.approx((1 / 25, 0.95))
    assert ours[24] == pytest.approx((1.0, 0.85))
    assert ours[99] == pytest.approx((1e-5, 0.95))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pct_start", 0.0),
        ("pct_start", 1.0),
        ("div_factor", 0.5),
        ("final_div_factor", 0.0),
        ("anneal", "step"),
        ("max_momentum", 0.5),
        ("max_momentum", 1.0),
    ],
)
def test_one_cycle_refuses_values_that_make_no_cycle(field, value):
    with pytest.raises(ValidationError, match=field):
        OneCycle(**{field: value})


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
