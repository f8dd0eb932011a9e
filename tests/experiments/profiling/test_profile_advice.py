import ast
import inspect
from typing import Any

import pytest
from helpers.experiments.profiles import make_recipe_of, make_situation

from tune_speed.core.errors import ConfigError
from tune_speed.data.loaders.configs import Resident, Streaming
from tune_speed.experiments.profiling import advice
from tune_speed.experiments.profiling.advice import advise, changed
from tune_speed.experiments.profiling.output import advice_text

GPU: dict[str, Any] = {"device_type": "cuda"}
TWO = {"recipe": {"loader": Streaming(workers=2)}}
PAGEABLE = {"recipe": {"loader": Streaming(workers=2, pin_memory=False)}}
FASTER = {"rates": {"fp32": 0.1, "bf16": 0.2}}
FULL = {"used_gib": 9.0}

FIRES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "more_workers": ({**TWO, "spare_cores": 2, "data_wait_ms": 45.0}, {"loader.workers": "4"}),
    "whole_set_on_device": (
        {**TWO, "set_bytes": 10**6, "data_wait_ms": 45.0},
        {"loader": "resident"},
    ),
    "larger_batch_for_data": ({**GPU, "data_wait_ms": 45.0}, {"batch_size": "16"}),
    "page_locked_copies": (
        {**GPU, **PAGEABLE, "host_to_device_ms": 9.0},
        {"loader.pin_memory": "true"},
    ),
    "recorded_steps": (
        {**GPU, "launch_frac": 0.95, "recipe": {"cuda_graph": False}},
        {"cuda_graph": "true"},
    ),
    "faster_arithmetic": (FASTER, {"precision": "bf16"}),
    "convolutions_in_channels_last": (
        {"recipe": {"channels_last": False}},
        {"channels_last": "true"},
    ),
    "compiled_network": ({**GPU, "peak_frac": 0.1}, {"compile": "true"}),
    "free_choice_of_kernels": (
        {**GPU, "backward_ms": 90.0, "recipe": {"deterministic": True}},
        {"deterministic": "false"},
    ),
    "fused_update": (
        {"optimizer_ms": 40.0, "recipe": {"optimizer_kernels": "foreach"}},
        {"optimizer_kernels": "fused"},
    ),
    "fewer_updates": ({"optimizer_ms": 40.0}, {"batch_size": "16"}),
    "fewer_averagings": (
        {"recipe": {"devices": 2}, "sync_ms": 40.0},
        {"accumulation_steps": "2"},
    ),
    "larger_batch_for_idle_gpu": ({**GPU, "idle_ms": 40.0}, {"batch_size": "16"}),
    "larger_batch_for_loop": ({"loop_ms": 20.0}, {"batch_size": "16"}),
    "less_arithmetic": ({"peak_frac": 0.7}, {}),
    "cores_that_others_have": ({"idle_ms": 20.0}, {}),
}
SILENT: dict[str, list[dict[str, Any]]] = {
    # Too little, no spare core, another loader.
    "more_workers": [
        {**TWO, "spare_cores": 2},
        {**TWO, "spare_cores": 1, "data_wait_ms": 45.0},
        {"spare_cores": 2, "data_wait_ms": 45.0},
    ],
    "whole_set_on_device": [{**TWO, "data_wait_ms": 45.0}, {**TWO, "set_bytes": 10**6}],
    "larger_batch_for_data": [{"data_wait_ms": 45.0}, {**GPU, **FULL, "data_wait_ms": 45.0}],
    "page_locked_copies": [{**GPU, **TWO, "host_to_device_ms": 9.0}, {**GPU, **PAGEABLE}],
    "recorded_steps": [
        {**GPU, "launch_frac": 0.5, "recipe": {"cuda_graph": False}},
        {"launch_frac": 0.95, "recipe": {"cuda_graph": False}},
        {**GPU, "launch_frac": 0.95, "recipe": {"cuda_graph": True}},
    ],
    "faster_arithmetic": [
        {"rates": {"fp32": 0.2, "bf16": 0.1}},
        {**FASTER, "data_wait_ms": 900.0},
        {"rates": {"fp32": 0.1, "bf16": 0.2}, "recipe": {"precision": "bf16"}},
    ],
    "convolutions_in_channels_last": [{}],
    "compiled_network": [
        {"peak_frac": 0.1},
        {**GPU, "peak_frac": 0.1, "recipe": {"compile": True}},
    ],
    "free_choice_of_kernels": [
        {"backward_ms": 90.0, "recipe": {"deterministic": True}},
        {**GPU, "recipe": {"deterministic": True}},
        {**GPU, "backward_ms": 90.0},
    ],
    "fused_update": [{"optimizer_ms": 40.0}, {"recipe": {"optimizer_kernels": "foreach"}}],
    "fewer_updates": [{}],
    "fewer_averagings": [{"recipe": {"devices": 2}, "sync_ms": 4.0}],
    "larger_batch_for_idle_gpu": [{"idle_ms": 40.0}, {**GPU, "idle_ms": 10.0}],
    "larger_batch_for_loop": [{}, {"loop_ms": 20.0, **FULL}],
    "less_arithmetic": [{}],
    "cores_that_others_have": [{**GPU, "idle_ms": 20.0}],
}


def test_every_rule_is_tested() -> None:
    place = {"Suggestion": 0, "_larger_batches": 1, "_doubled": 1}
    calls = (n for n in ast.walk(ast.parse(inspect.getsource(advice))) if isinstance(n, ast.Call))
    made = [n.args[place[n.func.id]] for n in calls if getattr(n.func, "id", "") in place]
    rules = {each.value for each in made if isinstance(each, ast.Constant)}
    assert rules and rules == set(FIRES) == set(SILENT)


@pytest.mark.parametrize("name", FIRES)
def test_rule_fires(name: str) -> None:
    situation, changes = FIRES[name]
    found = {advice.rule: advice for advice in advise(make_situation(**situation))}
    assert {change.field: change.after for change in found[name].changes} == changes


@pytest.mark.parametrize(
    ("name", "situation"), [(name, each) for name, several in SILENT.items() for each in several]
)
def test_rule_is_silent(name: str, situation: dict[str, Any]) -> None:
    assert name not in {advice.rule for advice in advise(make_situation(**situation))}


def test_nothing_is_advised_where_nothing_stands_out() -> None:
    assert advise(make_situation()) == advise(make_situation(**GPU)) == ()


def test_advice_says_figure_field_and_values() -> None:
    situation = make_situation(**{**TWO, "spare_cores": 2, "data_wait_ms": 45.0})
    # 45 of 143 ms.
    [said] = [advice_text(advice) for advice in advise(situation)]
    assert said == "waiting for data 31%: `loader.workers` 2 → 4"


def test_no_room_means_accumulation_instead_of_a_larger_batch() -> None:
    [advice] = advise(make_situation(optimizer_ms=40.0, **FULL))
    assert [change.field for change in advice.changes] == ["accumulation_steps"]


def test_effective_batch_stays_where_accumulation_can_be_halved() -> None:
    [advice] = advise(make_situation(loop_ms=20.0, recipe={"accumulation_steps": 4}))
    after = {change.field: change.after for change in advice.changes}
    assert (after, advice.hint) == ({"batch_size": "16", "accumulation_steps": "2"}, "")


def test_the_same_change_is_advised_once() -> None:
    found = advise(make_situation(optimizer_ms=60.0, loop_ms=40.0))
    assert [advice.rule for advice in found] == ["fewer_updates"]


def test_what_the_recipe_refuses_is_not_advised() -> None:
    """Steps of selective backprop wait for the device, so they cannot be recorded."""
    refused = {"speedups": {"selection": "selective_backprop"}}
    recipe = make_recipe_of(**refused)
    with pytest.raises(ConfigError, match="cuda_graph"):
        changed(recipe, {"cuda_graph": True})
    found = advise(make_situation(**GPU, launch_frac=0.95, recipe=refused))
    assert "recorded_steps" not in {advice.rule for advice in found}


def test_what_has_no_effect_on_the_device_is_not_advised() -> None:
    situation = make_situation(host_to_device_ms=9.0, **PAGEABLE)
    assert "page_locked_copies" not in {advice.rule for advice in advise(situation)}


def test_changed_recipe_keeps_the_rest() -> None:
    recipe = make_recipe_of(loader=Streaming(workers=2, prefetch_factor=4))
    assert changed(recipe, {"loader.workers": 4}).loader == Streaming(workers=4, prefetch_factor=4)
    assert changed(recipe, {"loader": Resident()}).loader == Resident()
