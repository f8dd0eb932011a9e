import json
from typing import Any

import pytest
from helpers.texts import Texts
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.core.errors import ConfigError
from tune_speed.experiments.ablation.design import Axis, Level, parse_axes, read_axes

INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=12)
PLAIN = st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
NAMES = st.from_regex(r"[a-z_]{1,8}(\.[a-z_]{1,8}){0,2}", fullmatch=True)


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=4))
def test_what_is_written_is_parsed_back(axes: dict[str, Any]) -> None:
    text = ",".join(f"{name}={as_json(value)}" for name, value in axes.items())
    assert repr(parse_axes(text)) == repr(axes)  # repr: 1, 1.0 and true are equal


@given(st.dictionaries(NAMES, st.lists(VALUES, min_size=2, max_size=4), min_size=1, max_size=3))
def test_bars_part_levels_as_a_list_does(axes: dict[str, list[Any]]) -> None:
    parts = [f" {name} = {' | '.join(map(as_json, levels))} " for name, levels in axes.items()]
    assert repr(parse_axes(",".join(parts))) == repr(axes)


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("accumulation_steps=2,precision=bf16", {"accumulation_steps": 2, "precision": "bf16"}),
        ("batch_size=32|64", {"batch_size": [32, 64]}),
        ("loader.pin_memory=true", {"loader.pin_memory": True}),
        ("clip_norm=null|1e-3", {"clip_norm": [None, 1e-3]}),
        ("a=[1, 2]", {"a": [1, 2]}),
        ("a=[[0.5,0.75]],b=x", {"a": [[0.5, 0.75]], "b": "x"}),
        ("a=[1,2]|[3,4]", {"a": [[1, 2], [3, 4]]}),
        ("a='x,y|z'|\"it's\",b=don't", {"a": ["x,y|z", "it's"], "b": "don't"}),
        ("a=b=c", {"a": "b=c"}),
        ("s={half: {precision: half}, o: {optimizer.lr: 1}}",
         {"s": {"half": {"precision": "half"}, "o": {"optimizer.lr": 1}}}),
    ],
)  # fmt: skip
def test_the_command_lines_form(text: str, axes: dict[str, Any]) -> None:
    assert parse_axes(text) == axes


WRONG_TEXTS = (
    *("", "precision", "=2", "a=1,", "a=", "a=1|", "a=1,a=2", "a=[1,b=2", "a=.inf"),
    "a,b=,c=1,c=2",
)


def test_every_mistake_on_the_command_line_is_told(kept_text: Texts) -> None:
    told = []
    for text in WRONG_TEXTS:
        with pytest.raises(ConfigError) as error:
            parse_axes(text)
        assert {problem.path for problem in error.value.problems} == {"--axes"}
        told.append(f"{text!r}: {error.value}\n")
    kept_text("".join(told))


@given(st.text(st.sampled_from("ab=,|[]{}'\": 1-#&*!\\\n"), max_size=20))
def test_any_text_is_parsed_or_a_mistake(text: str) -> None:
    try:
        axes = parse_axes(text)
        read_axes(axes)
    except ConfigError as error:
        assert error.problems


def test_a_field_has_a_level_for_each_value() -> None:
    axes = read_axes({"batch_size": [32, 64], "recipe.precision": "bf16", "clip_norm": None})
    assert axes == (
        Axis("batch_size", (
            Level("batch_size=32", (("batch_size", 32),)),
            Level("batch_size=64", (("batch_size", 64),)),
        )),
        Axis("precision", (Level("precision=bf16", (("precision", "bf16"),)),)),
        Axis("clip_norm", (Level("clip_norm=null", (("clip_norm", None),)),)),
    )  # fmt: skip


def test_a_list_in_a_list_is_one_value() -> None:
    (axis,) = read_axes({"lr_schedule.milestones": [[0.5, 0.75]]})
    assert axis.levels == (
        Level("lr_schedule.milestones=[0.5, 0.75]", (("lr_schedule.milestones", [0.5, 0.75]),)),
    )


def test_named_levels_may_set_several_fields_and_the_machine() -> None:
    tree = {"adamw": {"optimizer": {"adamw": {"lr": 1e-3}}, "epochs": 5}}
    axes = read_axes({"optimizer": tree, "cores": {"two": {"run.cpu_threads": 2}}})
    settings = (("optimizer", {"adamw": {"lr": 1e-3}}), ("epochs", 5))
    assert axes[0].levels == (Level("adamw", settings),)
    assert axes[1] == Axis("cores", (Level("two", (("run.cpu_threads", 2),)),))


WRONG_AXES: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"": 1}, "."),
    ({"precision": []}, ".precision"),
    ({"s": {}}, ".s"),
    ({"s": {"half": {}}}, ".s"),
    ({"s": {"half": "bf16"}}, ".s"),
    ({"s": {"": {"epochs": 1}}}, ".s"),
    ({"s": {"base": {"epochs": 1}}}, ".s"),
    ({"s": {"a + b": {"epochs": 1}}}, ".s"),
    ({"s": {"a\nb": {"epochs": 1}}}, ".s"),
    ({"order": ["x" * 200]}, ".order"),
    ({"epochs": [1, 1]}, ".epochs"),
    ({"epochs": [1, 1.0]}, ".epochs"),
    ({"epochs": 1, "recipe.epochs": 2}, ".epochs"),
    ({"a": {"x": {"epochs": 1}}, "b": {"x": {"devices": 2}}}, ".a"),
    ({"presicion": "bf16"}, ".presicion"),
    ({"optimizer..lr": 1}, ".optimizer..lr"),
    ({"s": {"x": {"optimizer.lr": 1, "optimizer": "sgd"}}}, ".s"),
]


def test_mistakes_in_axes_are_told(kept_text: Texts) -> None:
    told = []
    for axes, path in WRONG_AXES:
        with pytest.raises(ConfigError) as error:
            read_axes(axes)
        assert error.value.problems[0].path == f"ablate.axes{path}"
        told.append(f"{axes}: {error.value}\n")
    kept_text("".join(told))


@pytest.mark.parametrize(
    "path",
    ["study", "workload", "workload.target.value", "search.trials", "certify.top", "ablate.seeds",
     "tracking.log_model", "run.seed", "run", "replication.title", "scale.cpu", "recipe.workload"],
)  # fmt: skip
def test_no_axis_touches_the_workload_or_the_study(path: str) -> None:
    for axes in ({path: 1}, {"mine": {"level": {path: 1}}}):
        with pytest.raises(ConfigError, match="times compare within one workload only"):
            read_axes(axes)


def test_every_mistake_in_axes_is_told() -> None:
    with pytest.raises(ConfigError) as error:
        read_axes({"workload.mode": "anytime", "epochs": [], "presicion": "bf16"})
    assert [problem.path for problem in error.value.problems] == [
        "ablate.axes.workload.mode", "ablate.axes.epochs", "ablate.axes.presicion",
    ]  # fmt: skip
