import jsonschema
import pydantic
import pytest

from tune_speed.core.config import Config
from tune_speed.experiments.replication.checks import CHECKS
from tune_speed.study import schema
from tune_speed.study.fields import config_mistakes
from tune_speed.study.replication import (
    UNITS,
    CheckName,
    ClaimConfig,
    FigureName,
    ReplicationConfig,
    Scale,
)


class File(Config):
    """The two sections."""

    replication: ReplicationConfig | None = None
    """An experiment."""
    scale: Scale | None = None
    """Its profiles."""


def claim(**changes):
    fields = {"says": "So.", "ours": {"arm": "a=1", "figure": "speed_up"}}
    return {**fields, "paper": 1.87, "source": "S0", **changes}


def file(**changes):
    fields = {"title": "One.", "question": "Does it?", "claims": [claim()]}
    return {"replication": {**fields, **changes}, "scale": {"cpu": {"about": "Fewer images."}}}


RIGHT = [
    claim(paper=2, unit="×"),
    claim(paper=None),
    claim(defects=["One run of each."]),
    claim(ours={"arm": "base", "figure": "peak_memory_gib"}, unit="GB"),
]


@pytest.mark.parametrize("fields", RIGHT)
def test_claim_has_a_figure_and_its_source(fields):
    ClaimConfig.model_validate(fields)


WRONG = {
    "source": claim(source=""),
    "`unit` must be × for `speed_up`, not %": claim(unit="%"),
    "`speed_up` is against the base": claim(ours={"arm": "base", "figure": "speed_up"}),
}


@pytest.mark.parametrize("must", WRONG)
def test_claim_that_cannot_be_compared_says_why(must):
    with pytest.raises(pydantic.ValidationError, match=must):
        ClaimConfig.model_validate(WRONG[must])


def test_items_are_numbers_of_the_sheet():
    for items in ([90], [122], ["105"]):
        with pytest.raises(pydantic.ValidationError):
            ReplicationConfig.model_validate(file(items=items)["replication"])
    assert ReplicationConfig.model_validate(file(items=[91, 121])["replication"]).items == [91, 121]


def test_replication_asks_something():
    with pytest.raises(pydantic.ValidationError, match="`claims` or `checks`"):
        ReplicationConfig.model_validate(file(claims=[])["replication"])


def test_every_figure_has_units_and_every_check_is_there():
    assert set(UNITS) == set(FigureName.__args__)
    assert set(CHECKS) == set(CheckName.__args__)


def test_file_without_mistakes_has_none():
    check = {"question": "Is it?", "expected": "yes", "check": "hidden_syncs"}
    assert list(config_mistakes(File, file(items=[105], checks=[check]), ())) == []


MISTAKES = [
    (file(items=[105, 300]), ("replication", "items", 1), "must be less than or equal to 121"),
    (file(claims=[claim(), 3]), ("replication", "claims", 1), "must be a mapping of fields"),
    (file(claims=[claim(pper=1)]), ("replication", "claims", 0, "pper"), "no field `pper`"),
    (
        file(claims=[claim(), claim(ours={"arm": "a", "figure": "sped_up"})]),
        ("replication", "claims", 1, "ours", "figure"),
        "must be 'speed_up'",
    ),
    ({"scale": {"cpu": {}}}, ("scale", "cpu", "about"), "must be given"),
    ({"scale": {"cpuu": {"about": "x"}}}, ("scale",), "must be 'cpu' or 'gpu'"),
    ({"scale": [1]}, ("scale", 0), "must be a mapping of fields"),
    ({"scale": 1}, ("scale",), "must be a valid dictionary"),
]


@pytest.mark.parametrize(("tree", "path", "must"), MISTAKES)
def test_mistake_in_an_entry_of_a_list_or_mapping_has_its_place(tree, path, must):
    (mistake,) = [m for m in config_mistakes(File, tree, ()) if m.path == path]
    assert must in mistake.must


def test_mistakes_of_several_entries_are_all_found():
    tree = file(claims=[claim(x=1), claim(y=1)], title=3)
    paths = {mistake.path[1:] for mistake in config_mistakes(File, tree, ())}
    assert paths == {("title",), ("claims", 0, "x"), ("claims", 1, "y")}


def test_json_schema_has_every_entry_written_out():
    written = schema._config_schema(File, searched=False)
    validator = jsonschema.Draft202012Validator(written)
    validator.check_schema(written)
    assert validator.is_valid(file(items=[105]))
    for wrong in (file(claims=[claim(pper=1)]), {"scale": {"cpu": {"abut": "x"}}}, file(items=[1])):
        assert not validator.is_valid(wrong)
