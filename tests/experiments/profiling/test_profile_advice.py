from typing import Any

import pytest
from helpers.experiments.profiles import make_recipe_of, make_situation

from tune_speed.core.errors import ConfigError
from tune_speed.data.loaders.configs import Resident, Streaming
from tune_speed.experiments.profiling.advice import RULES, advise, changed
from tune_speed.experiments.profiling.output import advice_text

GPU: dict[str, Any] = {"device_type": "cuda"}
TWO: dict[str, Any] = {"recipe": {"loader": Streaming(workers=2)}}
LAUNCHED = {**GPU, "idle_ms": 40.0, "recipe": {"cuda_graph": False, "compile": True}}
FASTER: dict[str, Any] = {"rates": {"fp32": 0.1, "bf16": 0.2}}
FULL: dict[str, Any] = {"used_gib": 9.0}
UNFUSED = {"recipe": {"optimizer_kernels": "foreach"}}
PLANAR = {"recipe": {"channels_last": False}}

FIRES: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "whole set on the device": (
        "data",
        {**TWO, "set_bytes": 10**6, "data_wait_ms": 45.0},
        {"loader": "resident"},
    ),
    "more workers": (
        "data", {**TWO, "spare_cores": 2, "data_wait_ms": 45.0}, {"loader.workers": "4"}
    ),
    "no core for workers": ("data", {**TWO, "data_wait_ms": 45.0}, {}),
    "images": ("data", {**TWO, "spare_cores": 2, "images_ms": 45.0}, {}),
    "recorded steps": ("launches", LAUNCHED, {"cuda_graph": "true"}),
    "recorded already": (
        "launches",
        {**LAUNCHED, "recipe": {"cuda_graph": True}},
        {"batch_size": "16"},
    ),
    "no graph on a CPU": ("launches", {"idle_ms": 40.0}, {"batch_size": "16"}),
    "faster arithmetic": ("arithmetic", FASTER, {"precision": "bf16"}),
    "channels": ("arithmetic", PLANAR, {"channels_last": "true"}),
    "compiled": ("arithmetic", {**GPU, "peak_frac": 0.1}, {"compile": "true"}),
    "less arithmetic": ("arithmetic", {"peak_frac": 0.7}, {}),
    "fused update": ("memory", {**UNFUSED, "optimizer_ms": 90.0}, {"optimizer_kernels": "fused"}),
    "fewer updates": ("memory", {"optimizer_ms": 90.0}, {"accumulation_steps": "2"}),
    "memory binds forward": ("memory", {"binding": "memory"}, {"precision": "bf16"}),
}  # fmt: skip
SILENT: dict[str, dict[str, Any]] = {
    "a batch is there": {**TWO, "spare_cores": 2},
    "a device that computes": {**LAUNCHED, "idle_ms": 10.0},
    "a device that waits for batches": {**LAUNCHED, "data_wait_ms": 80.0},
    "no room for a batch": {"idle_ms": 40.0, **FULL},
    "other arithmetic is no faster": {"rates": {"fp32": 0.2, "bf16": 0.1}},
    "little arithmetic": {**FASTER, "data_wait_ms": 900.0},
    "kernels of no GPU seen": {**LAUNCHED, "idle_ms": None},
}


def found_by(situation: dict[str, Any]) -> dict[str, dict[str, str]]:
    found = advise(make_situation(**situation))
    return {each.rule: {c.field: c.after for c in each.changes} for each in found}


@pytest.mark.parametrize("name", FIRES)
def test_rule_fires(name: str) -> None:
    rule, situation, changes = FIRES[name]
    assert found_by(situation)[rule] == changes


@pytest.mark.parametrize("name", SILENT)
def test_rule_is_silent(name: str) -> None:
    assert not {"launches", "arithmetic", "memory"} & {*found_by(SILENT[name])}


def test_there_are_four_rules_and_nothing_is_advised_where_nothing_stands_out() -> None:
    assert {*RULES} == {rule for rule, *_ in FIRES.values()} and len(RULES) == 4
    assert found_by({}) == found_by(GPU | {"recipe": {"compile": True}}) == {}


def test_advice_says_figure_field_and_values() -> None:
    situation = make_situation(**{**TWO, "spare_cores": 2, "data_wait_ms": 45.0})
    # 45 and 1 of 143 ms.
    [said] = [advice_text(advice) for advice in advise(situation)]
    assert "31%" in said and "1%" in said and "`loader.workers` 2 → 4" in said


def test_effective_batch_stays_where_accumulation_can_be_halved() -> None:
    situation = make_situation(idle_ms=40.0, recipe={"accumulation_steps": 4})
    [advice] = advise(situation)
    after = {change.field: change.after for change in advice.changes}
    assert (after, advice.hint) == ({"batch_size": "16", "accumulation_steps": "2"}, "")


def test_what_the_recipe_refuses_is_not_advised() -> None:
    """Steps of selective backprop wait for the device, so they cannot be recorded."""
    refused = {"speedups": {"selection": "selective_backprop"}}
    with pytest.raises(ConfigError, match="cuda_graph"):
        changed(make_recipe_of(**refused), {"cuda_graph": True})
    assert "cuda_graph" not in found_by({**LAUNCHED, "recipe": refused})["launches"]


def test_changed_recipe_keeps_the_rest() -> None:
    recipe = make_recipe_of(loader=Streaming(workers=2, prefetch_factor=4))
    assert changed(recipe, {"loader.workers": 4}).loader == Streaming(workers=4, prefetch_factor=4)
    assert changed(recipe, {"loader": Resident()}).loader == Resident()
