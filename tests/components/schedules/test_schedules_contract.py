import math

import pytest
from helpers.components.references import factors_of_run, lr_of_run
from hypothesis import given, settings
from hypothesis import strategies as st

from tune_speed.components.schedules import SCHEDULES
from tune_speed.core.config import Component
from tune_speed.core.descriptions import descriptions

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
