"""Readers of what anybody may have written, on texts that hypothesis makes up.

Only errors that are meant for users come out, and what is written reads back as it was. Atheris
looks longer and deeper: `fuzz_run.py`.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from fuzz_targets import (
    FILTERS,
    STUDIES,
    TAG_READERS,
    TAGS,
    ledgers,
    read_checkpoint,
    read_filter,
    read_ledger,
    read_study,
    read_tags,
    read_yaml,
    saved_state,
    whole_checkpoint,
)
from helpers.making import make_record, make_run
from hypothesis import given, settings
from hypothesis import strategies as st

from tune_speed.core.errors import ConfigError, TuneSpeedError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.reporting.trials.recipe_export import recipe_yaml
from tune_speed.study.file import parse_recipe
from tune_speed.study.schema import StudySchema
from tune_speed.study.yaml import dump_yaml, parse_yaml
from tune_speed.tracking.filter.where import parse_where
from tune_speed.training.checkpoint.store import BadCheckpoint, split
from tune_speed.tuning.driver.trial_files import read_trial_file, trial_file
from tune_speed.tuning.ray.concurrency import FILE as PACKING
from tune_speed.tuning.ray.concurrency import read_packing

BRIEF = settings(max_examples=60)
signs = st.sampled_from([*"{}[]:,-?&*!|>'\"#%@`\n\t ~<=0123abc.ex_", "\\x", "- ", ": ", "\u2028"])
yaml_like = st.lists(signs, max_size=60).map("".join)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
)
keys = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12).filter(
    lambda key: key != "<<"
)
trees = st.recursive(
    scalars,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(keys, below, max_size=4),
    max_leaves=12,
)


def mutated(*seeds: bytes) -> st.SearchStrategy[bytes]:
    """Returns seeds of which a few pieces were cut out, doubled or overwritten."""

    def change(drawn: tuple[bytes, list[tuple[float, int, bytes]]]) -> bytes:
        content, changes = drawn
        for place, cut, put in changes:
            at = int(place * len(content))
            content = content[:at] + put + content[at + cut :]
        return content

    change_at = st.tuples(st.floats(0, 1), st.integers(0, 12), st.binary(max_size=8))
    return st.tuples(st.sampled_from(seeds), st.lists(change_at, max_size=4)).map(change)


@BRIEF
@given(st.one_of(yaml_like.map(str.encode), st.binary(max_size=80)))
def test_any_text_is_yaml_of_ours_or_a_config_error(data: bytes) -> None:
    read_yaml(data)


@settings(max_examples=12)
@given(mutated(*(text.encode() for text in STUDIES)))
def test_a_changed_study_is_read_or_refused(data: bytes) -> None:
    read_study(data)


@settings(max_examples=25)
@given(st.sampled_from(sorted(StudySchema.model_fields)), trees)
def test_any_tree_in_the_place_of_a_section_is_read_or_refused(section: str, tree: Any) -> None:
    try:
        text = dump_yaml({"workload": "digits", "recipe": {}, section: tree})
    except ConfigError:
        return
    read_study(text.encode())


@BRIEF
@given(st.one_of(mutated(*(text.encode() for text in FILTERS)), st.binary(max_size=60)))
def test_any_text_is_a_filter_or_a_config_error(data: bytes) -> None:
    read_filter(data)


@pytest.mark.parametrize(
    "text",
    [
        *("(" * 5000, "not " * 5000, "a=1 and " * 999 + "a=1", "a in (" + "1," * 20_000 + "1)"),
        *("a=" + "9" * 5000, "'" * 9999, "a" * 100_000 + "=1", "a=1 or (" * 49 + "a=1" + ")" * 49),
    ],
)
def test_long_and_deep_filters_end(text: str) -> None:
    read_filter(text.encode())


@BRIEF
@given(st.lists(st.tuples(st.sampled_from(["lr", "a.b"]), st.text(max_size=8)), min_size=1))
def test_any_text_in_quotes_is_compared_as_it_is(pairs: list[tuple[str, str]]) -> None:
    text = " and ".join("{}='{}'".format(name, value.replace("'", "''")) for name, value in pairs)
    where = parse_where(text)
    conditions = getattr(where.root, "parts", (where.root,))
    assert [(each.field, each.literals[0].raw) for each in conditions] == pairs


@BRIEF
@given(
    st.one_of(
        st.binary(max_size=100), mutated(saved_state()), mutated(whole_checkpoint(saved_state()))
    )
)
def test_any_bytes_are_a_checkpoint_or_a_bad_one(data: bytes) -> None:
    read_checkpoint(data)


@BRIEF
@given(st.binary(max_size=200), st.integers(0, 500), st.integers(1, 255))
def test_a_checkpoint_that_was_changed_anywhere_is_refused(
    payload: bytes, place: int, change: int
) -> None:
    whole = whole_checkpoint(payload)
    assert bytes(split(whole)[1]) == payload
    damaged = bytearray(whole)
    damaged[place % len(whole)] ^= change
    with pytest.raises(BadCheckpoint):
        split(bytes(damaged))
    with pytest.raises(BadCheckpoint):
        split(whole[: place % len(whole)])


json_trees = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=8), below),
    max_leaves=10,
)
events = st.fixed_dictionaries(
    {"event": st.sampled_from(["study", "proposed", "finished", "interrupted", "warm_start", "x"])},
    optional={
        **{
            name: json_trees for name in ("record", "params", "trials", "expected", "cost", "study")
        },
        "trial_id": st.sampled_from(["t0000", "t0001", "../x", "", 5]),
        "seed": json_trees,
    },
)


@BRIEF
@given(st.lists(st.one_of(events, json_trees), max_size=4), st.binary(max_size=5))
def test_any_events_are_a_ledger_or_refused(lines: list[Any], end: bytes) -> None:
    read_ledger(b"".join(json.dumps(line).encode() + b"\n" for line in lines) + end)


@BRIEF
@given(mutated(*ledgers()))
def test_a_changed_ledger_is_read_or_refused(data: bytes) -> None:
    read_ledger(data)


DEEP = [b"[" * 4900, b'{"a":' * 2000, b"[" * 2000 + b"]" * 2000]


def test_tags_that_nobody_changed_say_what_was_written() -> None:
    assert [bool(read(TAGS)) for read in TAG_READERS] == [True] * 3


@BRIEF
@given(st.one_of(st.sampled_from(DEEP), mutated(*(text.encode() for text in TAGS.values()))))
def test_any_tag_of_mlflow_is_read_or_left_out(data: bytes) -> None:
    read_tags(data)


@BRIEF
@given(data=st.one_of(st.sampled_from(DEEP), mutated(make_record().model_dump_json().encode())))
def test_any_file_beside_the_ledger_is_read_or_taken_for_none(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("study")
    (folder / "trials").mkdir()
    for path in (trial_file(folder, "t0000"), folder / PACKING):
        path.write_bytes(data)
    found = read_trial_file(folder, "t0000")
    assert found is None or isinstance(found, TrialRecord)
    assert read_packing(folder, {"trials": "4"}) is None


def test_folder_in_a_files_place_is_taken_for_none(tmp_path: Path) -> None:
    trial_file(tmp_path, "t0000").mkdir(parents=True)
    (tmp_path / PACKING).mkdir()
    assert read_trial_file(tmp_path, "t0000") is None
    assert read_packing(tmp_path, {}) is None


@settings(max_examples=40)
@given(
    study=st.text(max_size=20),
    trial_id=st.text(max_size=10),
    facts=st.dictionaries(st.text(max_size=6), st.text(max_size=12), max_size=3),
    batch_size=st.integers(-2, 64),
    device=st.text(max_size=10),
)
def test_a_recipe_of_any_record_is_a_file_or_a_config_error(
    study: str, trial_id: str, facts: dict[str, str], batch_size: int, device: str
) -> None:
    run = make_run(Status.REACHED).model_copy(update={"batch_size": batch_size})
    record = make_record(trial_id, runs=(run,), study=study, device=device).model_copy(
        update={"environment": facts, "recipe": RECIPE, "finished_at": study}
    )
    try:
        text = recipe_yaml(record, run_id=trial_id)
    except ConfigError:
        return
    header, _, body = text.partition("\nstudy:")
    assert all(line.startswith("# ") and line.isprintable() for line in header.split("\n"))
    assert parse_yaml(f"study:{body}").tree["study"] == study
    try:
        assert parse_recipe(text, file="x.yaml").recipe.samples_per_step == 64
    except TuneSpeedError as error:
        assert isinstance(error, ConfigError)


RECIPE = {
    "model": {"resnet20": {}},
    "optimizer": {"sgd": {"lr": 0.1}},
    "epochs": 1.0,
    "batch_size": 64,
}
