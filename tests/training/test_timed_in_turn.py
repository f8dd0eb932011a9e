"""Recipes timed in turn in one process."""

import pytest
from helpers.training.tiny import Tiny, make_spec

from tune_speed.components.models import MODELS
from tune_speed.training import side_by_side
from tune_speed.training.side_by_side import time_side_by_side


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "tiny", Tiny)


def test_recipes_take_turns_and_each_window_is_of_its_own_kind_of_step() -> None:
    specs = [make_spec(batch_size=batch_size) for batch_size in (8, 16)]
    windows = list(time_side_by_side(specs, rounds=2))
    keys = [each.key for each in windows]
    assert keys == keys[:2] * 2 and len(set(keys)) == 2
    assert {each.measured_in for each in windows} == {f"study/{side_by_side.LABEL}"}
    assert len({each.place for each in windows}) == 1
    assert all(each.step_s > 0 and each.reference_s and each.measured_at for each in windows)


def test_kinds_of_step_within_a_recipe_have_windows_each() -> None:
    stages = {"batch_growth": {"batch_stages": {"factors": [1, 2], "at": [0.0, 0.5]}}}
    (first, second) = time_side_by_side([make_spec(epochs=4.0, speedups=stages)], rounds=1)
    assert first.key != second.key
