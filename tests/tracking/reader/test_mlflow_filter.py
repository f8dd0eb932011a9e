from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tune_speed.tracking import Store
from tune_speed.tracking.store.store import runs_with, tag_contains

AWKWARD = ["'", '"', "`", "\\", "%", "_", ";", "--", "a' OR '1'='1", "it''s", " and ", "é", "\n"]
TEXTS = st.text(max_size=30) | st.lists(st.sampled_from(AWKWARD), max_size=6).map("".join)


@pytest.fixture(scope="module")
def runs(empty_store: Path) -> Iterator[tuple[Any, str, str, str]]:
    client = Store(f"sqlite:///{empty_store}").create()
    experiment = client.create_experiment("quoting")
    ids = [client.create_run(experiment).info.run_id for _ in range(2)]
    yield client, experiment, ids[0], ids[1]
    client.delete_experiment(experiment)


@settings(max_examples=80)
@given(value=TEXTS.filter(lambda text: "\x00" not in text), other=TEXTS)
def test_any_value_finds_its_run_and_no_other(
    runs: tuple[Any, str, str, str], value: str, other: str
) -> None:
    client, experiment, first, second = runs
    client.set_tag(first, "name", value)
    client.set_tag(second, "name", "x" if other == value else other)
    found = runs_with(client, [experiment], {"name": value})
    assert [run.info.run_id for run in found] == [first]


def test_pages_are_joined(runs: tuple[Any, str, str, str]) -> None:
    client, experiment, first, second = runs
    found = runs_with(client, [experiment], {}, page_size=1)
    assert {run.info.run_id for run in found} == {first, second}


def test_no_experiment_gives_no_run(runs: tuple[Any, str, str, str]) -> None:
    assert list(runs_with(runs[0], [], {})) == []


@settings(max_examples=40)
@given(before=TEXTS, part=TEXTS, after=TEXTS)
def test_any_part_of_a_value_finds_its_run_in_whatever_case(
    runs: tuple[Any, str, str, str], before: str, part: str, after: str
) -> None:
    client, experiment, first, _ = runs
    value = f"{before}{part.upper()}{after}".replace("\x00", "")
    client.set_tag(first, "name", value)
    also = tag_contains("name", part.replace("\x00", ""))
    found = runs_with(client, [experiment], {}, also=also)
    assert first in [run.info.run_id for run in found]
