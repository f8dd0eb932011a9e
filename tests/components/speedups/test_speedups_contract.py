"""What every entry of SPEEDUPS must do."""

from typing import get_args

import pytest

from tune_speed.components.speedups import SPEEDUPS
from tune_speed.components.speedups.base import Shape, Slot
from tune_speed.core.config import Component
from tune_speed.core.descriptions import descriptions
from tune_speed.data import ORDERS

NAMES = sorted(SPEEDUPS)
FIELDS = {"pretrain_other": {"dataset": {"name": "digits"}}}
"""What must be given; all else has defaults."""


@pytest.mark.parametrize("name", NAMES)
def test_config_round_trips_through_json(name):
    config = SPEEDUPS[name](**FIELDS.get(name, {}))
    assert SPEEDUPS[name].model_validate_json(config.model_dump_json()) == config
    component = Component(SPEEDUPS)
    read, fields = component.split(component.join(config))
    assert SPEEDUPS[read](**fields) == config


@pytest.mark.parametrize("name", NAMES)
def test_every_speedup_and_field_is_described_with_its_source(name):
    summary, *rest = (SPEEDUPS[name].__doc__ or "").split("\n\n")
    assert "\n" not in summary and "Source:" in "".join(rest)
    assert set(descriptions(SPEEDUPS[name])) == set(SPEEDUPS[name].model_fields)


@pytest.mark.parametrize("name", NAMES)
def test_slot_and_conflicts_are_names_that_exist(name):
    assert SPEEDUPS[name].slot in get_args(Slot)
    assert SPEEDUPS[name].conflicts.keys() <= {*SPEEDUPS, *ORDERS} - {name}


@pytest.mark.parametrize("name", NAMES)
def test_growth_covers_the_run_and_it_ends_with_whole_images(name):
    config = SPEEDUPS[name](**FIELDS.get(name, {}))
    shares, factors = zip(*config.growth(), strict=True)
    assert sum(shares) == pytest.approx(1) and min(factors) >= 1
    last = config.shape(Shape(32, 32), frac=0.999)
    assert (last.height, last.width, last.kept_frac) == (32, 32, 1)
