"""What fields mean, against pydantic's own reading of docstrings."""

from pydantic import BaseModel, ConfigDict, Field

from tune_speed.core.descriptions import descriptions
from tune_speed.core.records import Evaluation
from tune_speed.study.settings import SearchConfig
from tune_speed.training.recipe import Recipe


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
