from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tune_speed.tracking import Store
from tune_speed.tracking.store import store
from tune_speed.tracking.store.store import runs_with

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


def test_pages_are_joined(runs: tuple[Any, str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    client, experiment, first, second = runs
    monkeypatch.setattr(store, "PAGE", 1)
    found = runs_with(client, [experiment], {})
    assert {run.info.run_id for run in found} == {first, second}


def test_no_experiment_gives_no_run(runs: tuple[Any, str, str, str]) -> None:
    assert list(runs_with(runs[0], [], {})) == []
