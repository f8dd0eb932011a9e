import pytest

from tune_speed.config import Component
from tune_speed.schedules import SCHEDULES

NAMES = sorted(SCHEDULES)


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
    assert all(field.description for field in kind.model_fields.values())


@pytest.mark.parametrize("name", NAMES)
def test_schedule_stays_at_or_below_the_base_rate_and_reaches_it(name):
    num_steps = 50
    rates = [
        SCHEDULES[name]().factors((k + 1) / num_steps, step_frac=1 / num_steps).lr
        for k in range(num_steps)
    ]
    assert max(rates) == pytest.approx(1)
    assert min(rates) > 0
