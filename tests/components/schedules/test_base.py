import math

import pytest
from helpers.components.references import factors_of_run, lr_of_run, torch_lr_of_run
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.optim.lr_scheduler import LinearLR

from tune_speed.components.optim.optimizers import Sgd
from tune_speed.components.schedules import SCHEDULES
from tune_speed.components.schedules.base import Constant
from tune_speed.components.schedules.decays import Cosine, MultiStep, ReduceOnPlateau, Trapezoid
from tune_speed.core.config import Component, descriptions


def test_constant_leaves_rate_and_momentum_alone():
    assert Constant().factors(0.01, step_frac=0.01) == (1.0, None)
    assert Constant().factors(1.0, step_frac=0.01) == (1.0, None)


def test_constant_does_not_look_at_losses():
    assert Constant().factors(0.5, step_frac=0.01, losses=[1.0, 2.0, 3.0]) == (1.0, None)


def test_constant_after_a_warmup_leaves_the_rate_alone():
    config = Constant(warmup_frac=0.5, warmup_start=0.2)
    assert config.factors(0.25, step_frac=0.25) == (0.2, None)
    assert config.factors(0.75, step_frac=0.25) == (1.0, None)


EPOCHS, STEPS_PER_EPOCH = 90, 20


@settings(max_examples=40)
@given(num_steps=st.integers(2, 80), data=st.data(), start=st.floats(0.001, 1))
def test_warmup_equals_torch_step_by_step(num_steps, data, start):
    rise = data.draw(st.integers(1, num_steps - 1))
    config = Constant(warmup_frac=rise / num_steps, warmup_start=start)
    theirs = torch_lr_of_run(lambda o: LinearLR(o, start, total_iters=rise), num_steps)
    assert lr_of_run(config, num_steps) == pytest.approx(theirs, rel=1e-9)


def test_warmup_ends_between_steps_where_its_share_does():
    rates = lr_of_run(Constant(warmup_frac=0.25, warmup_start=0.5), 10)
    assert rates == pytest.approx([0.5, 0.7, 0.9] + 7 * [1.0])


@pytest.mark.parametrize("kind", [Constant, Cosine, ReduceOnPlateau, MultiStep, Trapezoid])
def test_warmup_is_the_same_in_every_schedule_that_has_one(kind):
    warm = lr_of_run(kind(warmup_frac=0.3, warmup_start=0.1), 10)[:3]
    assert warm == pytest.approx([0.1, 0.4, 0.7])


def goyal_rates(*, batch_size: int) -> list[float]:
    """Returns the rates of Goyal et al., section 5.1: 0.1 per 256, 5 epochs of warm-up of 90."""
    optimizer = Sgd(lr=0.1, lr_per_examples=256, momentum=0.9)
    schedule = MultiStep(
        milestones=[30 / 90, 60 / 90, 80 / 90],
        warmup_frac=5 / 90,
        warmup_start=256 / batch_size,
    )
    factors = lr_of_run(schedule, EPOCHS * STEPS_PER_EPOCH)
    return [optimizer.step_lr(batch_size) * factor for factor in factors]


def test_linear_scaling_and_warmup_give_the_rates_of_goyal_et_al():
    rates = goyal_rates(batch_size=2048)
    at_epoch = {epoch: rates[int(epoch * STEPS_PER_EPOCH)] for epoch in (0, 2.5, 5, 30, 60, 80)}
    assert at_epoch == pytest.approx({0: 0.1, 2.5: 0.45, 5: 0.8, 30: 0.08, 60: 8e-3, 80: 8e-4})
    assert rates[30 * STEPS_PER_EPOCH - 1] == pytest.approx(0.8)
    rise = [0.1 + 0.7 * t / (5 * STEPS_PER_EPOCH) for t in range(5 * STEPS_PER_EPOCH)]
    assert rates[: len(rise)] == pytest.approx(rise)


def test_reference_batch_of_goyal_et_al_needs_no_warmup():
    assert goyal_rates(batch_size=256)[: 30 * STEPS_PER_EPOCH] == [pytest.approx(0.1)] * 600


@pytest.mark.parametrize(
    ("field", "value"),
    [("warmup_frac", 1.0), ("warmup_frac", -0.1), ("warmup_start", 0.0), ("warmup_start", 1.1)],
)
def test_warmup_refuses_values_that_make_no_rise(field, value):
    with pytest.raises(ValidationError, match=field):
        Constant(**{field: value})


NAMES = sorted(SCHEDULES)

losses_of_runs = st.lists(st.floats(0, 1e6), max_size=30)


@pytest.mark.parametrize("name", NAMES)
def test_schedule_config_round_trips_through_json(name):
    config = SCHEDULES[name]()
    assert SCHEDULES[name].model_validate_json(config.model_dump_json()) == config
    component = Component(SCHEDULES)
    read, fields = component.split(component.join(config))
    assert SCHEDULES[read](**fields) == config


@pytest.mark.parametrize("name", NAMES)
def test_every_schedule_and_field_is_described(name):
    kind = SCHEDULES[name]
    assert kind.__doc__ and kind.__doc__ != SCHEDULES[name].__base__.__doc__
    assert "Source:" in kind.__doc__
    assert set(descriptions(kind)) == set(kind.model_fields)


@pytest.mark.parametrize("name", NAMES)
def test_schedule_stays_at_or_below_the_base_rate_and_reaches_it(name):
    rates = lr_of_run(SCHEDULES[name](), 200)
    assert max(rates) == pytest.approx(1)
    assert min(rates) > 0


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=50)
@given(num_steps=st.integers(1, 1000), data=st.data(), losses=losses_of_runs)
def test_factors_are_positive_and_momentum_is_a_share(name, num_steps, data, losses):
    k = data.draw(st.integers(0, num_steps - 1))
    lr, momentum = SCHEDULES[name]().factors(
        (k + 1) / num_steps, step_frac=1 / num_steps, losses=losses
    )
    assert 0 < lr <= 1 + 1e-12 and math.isfinite(lr)
    assert momentum is None or 0 <= momentum < 1


@pytest.mark.parametrize("name", NAMES)
def test_schedule_is_a_pure_function(name):
    config, losses = SCHEDULES[name](), [2.3, 1.0, 1.0, 1.1, 0.9]
    first = factors_of_run(config, 20, losses=losses)
    assert losses == [2.3, 1.0, 1.0, 1.1, 0.9]
    assert factors_of_run(config, 20, losses=losses)[::-1] == first[::-1]
    assert factors_of_run(SCHEDULES[name](), 20, losses=tuple(losses)) == first


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"reduce_on_plateau"}))
def test_only_reduce_on_plateau_looks_at_losses(name):
    stalled = factors_of_run(SCHEDULES[name](), 20, losses=[1.0] * 50)
    assert stalled == factors_of_run(SCHEDULES[name](), 20)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_schedule_takes_the_shortest_runs(name, num_steps):
    assert all(0 < rate <= 1 for rate in lr_of_run(SCHEDULES[name](), num_steps))
