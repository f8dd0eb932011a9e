import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers.components.references import (
    factors_of_run,
    lr_of_run,
    torch_lr_of_run,
    torch_optimizer,
)
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from tune_speed.components.schedules.decays import (
    Cosine,
    Exponential,
    MultiStep,
    OneCycle,
    OneCycleFastai,
    ReduceOnPlateau,
    Trapezoid,
)
from tune_speed.study.fields import config_mistakes


@settings(max_examples=40)
@given(num_steps=st.integers(1, 100), final=st.floats(0, 1))
def test_cosine_equals_torch_step_by_step(num_steps, final):
    theirs = torch_lr_of_run(
        lambda o: CosineAnnealingLR(o, T_max=num_steps, eta_min=final), num_steps
    )
    ours = lr_of_run(Cosine(final_frac=final), num_steps)
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
@pytest.mark.parametrize(("rise", "fall"), [(1, 9), (5, 85), (30, 10), (12, 1)])
def test_cosine_after_a_warmup_equals_torch(rise, fall):
    config = Cosine(warmup_frac=rise / (rise + fall), warmup_start=0.125)

    def sequence(optimizer):
        parts = [
            LinearLR(optimizer, 0.125, total_iters=rise),
            CosineAnnealingLR(optimizer, T_max=fall),
        ]
        return SequentialLR(optimizer, parts, milestones=[rise])

    assert lr_of_run(config, rise + fall) == pytest.approx(torch_lr_of_run(sequence, rise + fall))


def test_cosine_by_hand():
    rates = lr_of_run(Cosine(final_frac=0.2), 4)
    assert rates == pytest.approx([1.0, 0.6 + 0.4 * 0.5**0.5, 0.6, 0.6 - 0.4 * 0.5**0.5])


def test_cosine_leaves_the_momentum_alone():
    assert {factors.momentum for factors in factors_of_run(Cosine(), 10)} == {None}


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_cosine_refuses_a_final_share_outside_0_to_1(value):
    with pytest.raises(ValidationError, match="final_frac"):
        Cosine(final_frac=value)


def test_it_is_torchs_exponential_lr_at_every_step():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.603 ** (1 / 40))
    for rate in lr_of_run(Exponential(final_frac=0.603), 40):
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()


def test_it_falls_from_the_end_of_the_warm_up():
    rates = lr_of_run(Exponential(final_frac=0.01, warmup_frac=0.5, warmup_start=0.2), 100)
    assert rates[0] == pytest.approx(0.2) and rates[50] == pytest.approx(1)
    assert rates[75] == pytest.approx(0.1)


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


@settings(max_examples=40)
@given(num_steps=st.integers(2, 120), data=st.data(), gamma=st.floats(0.01, 1))
def test_multi_step_equal_torch_step_by_step(num_steps, data, gamma):
    drops = data.draw(st.sets(st.integers(1, num_steps - 1), min_size=1, max_size=5))
    config = MultiStep(milestones=[drop / num_steps for drop in sorted(drops)], gamma=gamma)
    theirs = torch_lr_of_run(lambda o: MultiStepLR(o, sorted(drops), gamma), num_steps)
    assert lr_of_run(config, num_steps) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
@settings(max_examples=40)
@given(
    rise=st.integers(1, 30),
    drops=st.sets(st.integers(1, 60), min_size=1, max_size=4),
    start=st.floats(0.01, 1),
)
@example(rise=5, drops={25, 55}, start=1 / 8)
def test_multi_step_after_a_warmup_equal_torch_which_counts_from_its_end(rise, drops, start):
    num_steps = rise + 61
    config = MultiStep(
        milestones=[(rise + drop) / num_steps for drop in sorted(drops)],
        warmup_frac=rise / num_steps,
        warmup_start=start,
    )

    def sequence(optimizer):
        parts = [
            LinearLR(optimizer, start, total_iters=rise),
            MultiStepLR(optimizer, sorted(drops)),
        ]
        return SequentialLR(optimizer, parts, milestones=[rise])

    assert lr_of_run(config, num_steps) == pytest.approx(torch_lr_of_run(sequence, num_steps))


@pytest.mark.parametrize("num_steps", [3, 7, 10, 49, 1000, 64_000])
def test_a_drop_comes_with_the_first_step_that_begins_at_its_milestone_or_later(num_steps):
    rates = lr_of_run(MultiStep(milestones=[1 / 3]), num_steps)
    first = next(k for k in range(num_steps) if 3 * k >= num_steps)
    assert rates[first - 1 : first + 1] == [1.0, 0.1]


def test_defaults_are_the_drops_of_the_resnet_paper():
    rates = lr_of_run(MultiStep(), 64_000)
    assert [k for k in range(1, 64_000) if rates[k] != rates[k - 1]] == [32_000, 48_000]
    assert rates[-1] == pytest.approx(0.01)


def test_multi_step_leave_the_momentum_alone():
    assert {factors.momentum for factors in factors_of_run(MultiStep(), 10)} == {None}


@pytest.mark.parametrize("value", [[], [0.0], [1.0], [0.5, 0.5], [0.8, 0.4], 0.5, "0.5", ["0.5"]])
def test_milestones_must_be_a_list_of_ascending_shares(value):
    with pytest.raises(ValidationError, match="milestones"):
        MultiStep(milestones=value)


def test_milestones_must_not_lie_in_the_warmup():
    with pytest.raises(ValidationError, match=r"`milestones` must not lie in the warm-up.*0\.2"):
        MultiStep(milestones=[0.2, 0.8], warmup_frac=0.3)


def mistakes(milestones):
    tree = {"milestones": milestones, "gamma": {"low": 0.05, "high": 0.5, "log": True}}
    return [(mistake.path, mistake.must) for mistake in config_mistakes(MultiStep, tree, ())]


def test_in_a_search_milestones_are_a_fixed_list():
    assert mistakes([0.4, 0.8]) == []
    [(path, must)] = mistakes({"choices": [[0.4, 0.8], [0.5, 0.75]]})[:1]
    assert path == ("milestones", "choices", 0) and "single finite value" in must
    [(path, must)] = mistakes({"low": 0.1, "high": 0.9})
    assert path == ("milestones",) and "where a number belongs" in must


@pytest.mark.parametrize(
    ("value", "at", "must"),
    [
        ([0.4, 2.0], ("milestones", 1), "less than 1"),
        (["0.4"], ("milestones", 0), "must be a number"),
        ([0.8, 0.4], ("milestones",), "ascending order"),
        (0.5, ("milestones",), "list of one or more shares of the run, as in"),
    ],
)
def test_a_search_names_the_milestone_that_is_wrong(value, at, must):
    [(path, text)] = mistakes(value)
    assert path == at and must in text


# Few distinct values, so that losses stall, and neighbours, so that the threshold decides.
losses_of_runs = st.lists(
    st.sampled_from([0.0, 0.5, 0.99985, 0.9999, 0.99995, 1.0, 1.5]) | st.floats(0, 1e3), max_size=40
)
configs = st.builds(
    ReduceOnPlateau,
    factor=st.floats(0.05, 0.9),
    patience=st.integers(0, 4),
    threshold=st.sampled_from([0.0, 1e-4, 0.1]),
    cooldown=st.integers(0, 4),
    min_factor=st.sampled_from([1e-8, 0.05, 1.0]),
)


def our_rates(config, losses):
    so_far = [losses[: n + 1] for n in range(len(losses))]
    return [config.factors(0.5, step_frac=0.1, losses=part).lr for part in so_far]


def torch_rates(config, losses):
    optimizer = torch_optimizer(lr=1.0)
    plateau = ReduceLROnPlateau(
        optimizer,
        factor=config.factor,
        patience=config.patience,
        threshold=config.threshold,
        cooldown=config.cooldown,
        min_lr=config.min_factor,
        eps=0.0,
    )
    for loss in losses:
        plateau.step(loss)
        yield optimizer.param_groups[0]["lr"]


@settings(max_examples=100)
@given(config=configs, losses=losses_of_runs)
@example(config=ReduceOnPlateau(patience=0), losses=[1.0] * 40)
@example(config=ReduceOnPlateau(patience=1, cooldown=3), losses=[1.0] * 40)
@example(config=ReduceOnPlateau(patience=0, cooldown=2), losses=[1.0, 1.0, 0.5, 0.4, 0.4, 0.4, 0.4])
def test_reduce_on_plateau_equals_torch_call_by_call(config, losses):
    assert our_rates(config, losses) == pytest.approx(list(torch_rates(config, losses)), rel=1e-9)


def test_two_stalls_are_borne_and_the_third_drops():
    config = ReduceOnPlateau(patience=2)
    assert our_rates(config, [1, 0.9, *5 * [0.8]]) == pytest.approx(5 * [1.0] + 2 * [0.1])


def test_defaults_are_those_of_torch():
    config, theirs = ReduceOnPlateau(), ReduceLROnPlateau(torch_optimizer())
    for field in ("factor", "patience", "threshold", "cooldown"):
        assert getattr(config, field) == getattr(theirs, field)


def test_without_an_evaluation_there_is_no_drop():
    assert ReduceOnPlateau(patience=0).factors(1.0, step_frac=0.5) == (1.0, None)


def test_drops_end_at_the_least_factor():
    config = ReduceOnPlateau(patience=0, min_factor=1e-3)
    assert our_rates(config, [1.0] * 500)[-1] == 1e-3
    assert our_rates(ReduceOnPlateau(patience=0), [1.0] * 500)[-1] == 1e-8


def test_a_drop_in_the_warmup_multiplies_it():
    config = ReduceOnPlateau(patience=0, warmup_frac=0.5, warmup_start=0.2)
    assert config.factors(0.25, step_frac=0.25, losses=[1.0, 1.0]).lr == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("factor", 1.0),
        ("factor", 0.0),
        ("patience", -1),
        ("patience", 1.5),
        ("threshold", 1.0),
        ("cooldown", -1),
        ("min_factor", 0.0),
    ],
)
def test_reduce_on_plateau_refuses_values_that_never_drop_or_never_end(field, value):
    with pytest.raises(ValidationError, match=field):
        ReduceOnPlateau(**{field: value})


fracs = st.floats(0.001, 0.999)
configs_of_one_cycle = st.builds(
    OneCycle,
    pct_start=fracs,
    div_factor=st.floats(1, 100),
    final_div_factor=st.floats(1, 1e5),
    anneal=st.sampled_from(["cos", "linear"]),
    base_momentum=st.floats(0, 0.9),
    max_momentum=st.floats(0.9, 0.99),
)


def our_rates_of_one_cycle(config, num_steps):
    progress = [(k + 1) / num_steps for k in range(num_steps)]
    return [config.factors(p, step_frac=1 / num_steps) for p in progress]


def torch_rates_of_one_cycle(config, num_steps):
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
@given(config=configs_of_one_cycle, num_steps=st.integers(1, 60))
@example(config=OneCycle(), num_steps=1)
@example(config=OneCycle(), num_steps=2)
@example(config=OneCycle(pct_start=0.5), num_steps=3)
@example(config=OneCycle(), num_steps=1000)
@example(config=OneCycle(anneal="linear", div_factor=1.0), num_steps=7)
def test_one_cycle_equals_torch_step_by_step(config, num_steps):
    # Where the rise is as long as one step, torch divides by zero: see the next tests.
    assume(abs(config.pct_start * num_steps - 1) > 1e-6)
    for ours, (lr, momentum) in zip(
        our_rates_of_one_cycle(config, num_steps),
        torch_rates_of_one_cycle(config, num_steps),
        strict=True,
    ):
        assert math.isclose(ours.lr, lr, rel_tol=1e-12, abs_tol=1e-15)
        assert math.isclose(ours.momentum, momentum, rel_tol=1e-12, abs_tol=1e-15)


@pytest.mark.parametrize("num_steps", [2, 5, 10])
def test_a_rise_of_one_step_begins_at_its_peak_where_torch_divides_by_zero(num_steps):
    config = OneCycle(pct_start=1 / num_steps)
    with pytest.raises(ZeroDivisionError):
        list(torch_rates_of_one_cycle(config, num_steps))
    ours = our_rates_of_one_cycle(config, num_steps)
    assert ours[0] == (1.0, config.base_momentum)
    assert ours[-1].lr == pytest.approx(1 / 25 / 1e4)
    assert all(a.lr > b.lr for a, b in pairwise(ours))


def test_a_single_step_gets_the_last_rate_as_in_torch():
    (only,) = our_rates_of_one_cycle(OneCycle(div_factor=10.0, final_div_factor=100.0), 1)
    assert only == (pytest.approx(1e-3), 0.95)


def test_momentum_is_left_alone_unless_it_is_cycled():
    config = OneCycle(cycle_momentum=False)
    assert {rates.momentum for rates in our_rates_of_one_cycle(config, 10)} == {None}


def test_linear_one_cycle_by_hand():
    config = OneCycle(anneal="linear", pct_start=0.5, div_factor=2.0, final_div_factor=5.0)
    rates = [rates.lr for rates in our_rates_of_one_cycle(config, 8)]
    rise, fall = [1 / 2, 4 / 6, 5 / 6, 1], [0.775, 0.55, 0.325, 0.1]
    assert rates == pytest.approx(rise + fall)


def test_fastai_defaults_follow_from_the_documented_translation():
    # fastai: rate max/25 -> max -> max/1e5, peak after a quarter; final divisor 1e5 / 25.
    config = OneCycle(pct_start=0.25, div_factor=25.0, final_div_factor=1e5 / 25)
    ours = our_rates_of_one_cycle(config, 100)
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
