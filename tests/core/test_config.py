from typing import Annotated

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tune_speed.core.config import (
    Component,
    Config,
    canonical_hash,
    descriptions,
    did_you_mean,
    flatten,
)
from tune_speed.core.records import Evaluation
from tune_speed.study.settings import SearchConfig
from tune_speed.training.recipe import Recipe


class Small(Config):
    """A small thing."""

    size: Annotated[int, Field(gt=0)] = 1
    """Its size."""


class Large(Config):
    """A large thing."""

    rate: float
    """Its rate."""


THINGS: dict[str, type[Config]] = {"small": Small, "large": Large}


class Box(Config):
    """Holds a thing."""

    thing: Annotated[Config, Component(THINGS)]
    """What is in it."""
    label: Annotated[Config, Component(THINGS, tag="name")] = Small()
    """What is on it."""


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("small", Small()),
        ({"small": {"size": 3}}, Small(size=3)),
        ({"small": None}, Small()),
        ({"large": {"rate": 2}}, Large(rate=2.0)),
    ],
)
def test_component_reads_each_form(written: object, expected: Config) -> None:
    assert Box.model_validate({"thing": written}).thing == expected


def test_tagged_component_has_its_name_among_its_fields() -> None:
    box = Box.model_validate({"thing": "small", "label": {"name": "large", "rate": 1.5}})
    assert box.label == Large(rate=1.5)
    assert box.model_dump(mode="json")["label"] == {"name": "large", "rate": 1.5}


@pytest.mark.parametrize("thing", [Small(size=2), Large(rate=0.5)])
def test_dumped_component_reads_back_equal(thing: Config) -> None:
    box = Box(thing=thing, label=thing)
    assert Box.model_validate(box.model_dump(mode="json")) == box


@pytest.mark.parametrize(
    ("written", "fits"),
    [
        ({"thing": "small"}, True),
        ({"thing": {"small": {"size": 3}}}, True),
        ({"thing": {"large": {"rate": 2.5}}, "label": {"name": "small", "size": 2}}, True),
        ({"thing": "small", "label": {"name": "large", "rate": 1.5}}, True),
        ({"thing": "smal"}, False),
        ({"thing": {"small": {"size": 0}}}, False),
        ({"thing": {"small": {}, "large": {"rate": 1.0}}}, False),
        ({"thing": {}}, False),
        ({"thing": {"large": {}}}, False),
        ({"thing": "small", "label": {"size": 2}}, False),
        ({"thing": "small", "label": {"name": "large"}}, False),
        ({"thing": "small", "label": {"name": "small", "rate": 1.5}}, False),
        ({"thing": "small", "label": {"name": "other"}}, False),
    ],
)
def test_only_entries_that_fit_are_read(written: dict[str, object], fits: bool) -> None:
    try:
        Box.model_validate(written)
    except ValidationError:
        assert not fits
    else:
        assert fits


def test_forms_of_a_component_are_in_its_messages_and_its_schema() -> None:
    plain = "one of small, large, written as a name or as {small: {…}}"
    tagged = "one of small, large, written as a name or as {name: small, …}"
    properties = Box.model_json_schema()["properties"]
    shown = [properties[name]["description"] for name in ("thing", "label")]
    assert shown == [plain, tagged]
    with pytest.raises(ValidationError, match=r"label\n  must be one of small, large, .* {name: "):
        Box.model_validate({"thing": "small", "label": {"small": {}}})


def test_unknown_component_names_the_nearest() -> None:
    with pytest.raises(ValidationError, match="did you mean `small`"):
        Box.model_validate({"thing": "smal"})


@pytest.mark.parametrize("written", [3, None, {"small": {}, "large": {}}, {"small": 3}, []])
def test_value_of_no_component_form_is_refused(written: object) -> None:
    with pytest.raises(ValidationError, match="must be one of small, large"):
        Box.model_validate({"thing": written})


def test_configs_refuse_unknown_fields_and_other_types() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        Small.model_validate({"sise": 1})
    with pytest.raises(ValidationError, match="valid integer"):
        Small.model_validate({"size": "1"})
    with pytest.raises(ValidationError, match="finite"):
        Large.model_validate({"rate": float("nan")})
    with pytest.raises(ValidationError, match="frozen"):
        Small().size = 2  # type: ignore[misc]


def test_hash_is_the_start_of_sha256_over_sorted_json() -> None:
    # printf '{"a":[1,null],"b":"x"}' | sha256sum
    assert canonical_hash({"b": "x", "a": (1, None)}) == "3dece6dc8d22d616"
    assert canonical_hash({"a": 1}) != canonical_hash({"a": 1.5})
    with pytest.raises(ValueError, match=r"NaN|nan|range"):
        canonical_hash({"a": float("nan")})


def test_flatten_keeps_empty_mappings_as_leaves() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": 2}}, "e": {}}) == {"a.b": 1, "a.c.d": 2, "e": {}}


def test_nothing_near_is_suggested_for_nothing_alike() -> None:
    assert did_you_mean("xyz", THINGS) == ""
    assert did_you_mean("lrr", ["lr", "momentum"]) == "; did you mean `lr`?"


def test_renamed_entry_is_suggested_by_its_present_name() -> None:
    known = ["multi_step", "cosine"]
    assert did_you_mean("step_drops", known) == (
        "; did you mean `multi_step`, as it is called now?"
    )
    assert did_you_mean("step_drops", ["cosine"]) == ""


def test_nothing_is_suggested_for_a_name_that_takes_long_to_compare() -> None:
    assert did_you_mean("a" * 200, ["a" * 199]) != ""
    assert did_you_mean("a" * 201, ["a" * 199]) == ""


def test_fields_of_speed_are_plain_json_and_switches_are_on_or_off() -> None:
    class Timed(Config):
        sizes: tuple[int, ...] = (1, 2)
        rate: float = 0.5
        noise: float | None = 0.25
        label: str = "a"
        untimed_fields = frozenset({"label"})
        switch_fields = frozenset({"noise"})

    assert Timed().speed_fields() == {"sizes": [1, 2], "rate": 0.5, "noise": True}
    assert Timed(noise=0.0).speed_fields()["noise"] == 0.0
    assert Timed(noise=None).speed_fields()["noise"] is None


class Parent(BaseModel):
    """Not a field's."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    first: int = 1
    """One line."""
    second: str = "a"
    """Two
    lines.

        Indented.
    """
    third: int = 3


class Child(Parent):
    """Neither is this."""

    second: str = "b"
    """Another one."""
    fourth: float = Field(default=4.0, description="What the field says holds.")
    """Not this."""

    @property
    def fifth(self) -> int:
        """No field."""
        return 5


def test_descriptions_are_those_that_pydantic_reads() -> None:
    for kind in (Parent, Child):
        fields = kind.model_fields.items()
        assert descriptions(kind) == {n: f.description for n, f in fields if f.description}
    assert list(descriptions(Child)) == ["first", "second", "fourth"]


def test_every_field_of_recipes_and_searches_is_described() -> None:
    for kind in (Recipe, SearchConfig):
        assert set(descriptions(kind)) == set(kind.model_fields)


def test_class_without_source_has_no_descriptions() -> None:
    made: dict[str, type[BaseModel]] = {}
    exec("class Typed(Base):\n    size: int\n    'Its size.'", {"Base": BaseModel}, made)
    assert descriptions(made["Typed"]) == {}


def test_class_within_a_function_is_found() -> None:
    class Inner(BaseModel):
        size: int = 1
        """Its size."""

    assert descriptions(Inner) == {"size": "Its size."}


def test_json_schemas_of_records_have_the_descriptions() -> None:
    properties = Evaluation.model_json_schema()["properties"]
    assert properties["step"]["description"] == "Optimizer steps done."
