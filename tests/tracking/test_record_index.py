import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_record, make_run
from helpers.tracking.stores import put

from tune_speed.core.comparability import totals_of
from tune_speed.core.errors import ServiceError
from tune_speed.core.records import TrialRecord
from tune_speed.tracking import Query, Store, Tracker, find_trials, schema
from tune_speed.tracking.filter.where import parse_where
from tune_speed.tracking.reader import changes, queries, tables
from tune_speed.tracking.reader.leaders import find_leaders
from tune_speed.tracking.reader.tables import TrackedTrial
from tune_speed.tracking.record_index import index_of


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(folder))
    return folder / "records"


@pytest.fixture(params=["sql", "mlflow"])
def filled(
    request: pytest.FixtureRequest, uri: str, cache: Path, by_mlflow: Callable[[], None]
) -> str:
    """A store with three trials, read by SQL or by MLflow's client."""
    if request.param == "mlflow":
        by_mlflow()
    put([make_record(f"t000{i}", time_s=3.0 - i) for i in range(3)], uri)
    return uri


def names(uri: str) -> list[str]:
    return [trial.record.trial_id for trial in find_trials(Store(uri))]


def index_file(cache: Path) -> Path:
    (path,) = cache.glob("*.db")
    return path


def test_facts_say_what_the_record_does() -> None:
    record = make_record(runs=tuple(make_run(time_s=1.0 + i, seed=i) for i in range(3)))
    facts = schema.unpack_facts(schema.record_tags(record))
    totals = totals_of([record])
    assert facts == schema.facts_of(record) and facts is not None
    assert (facts.time_s, facts.tuning_cost_s, facts.device_s) == (
        2.0,
        totals.tuning_cost_s,
        totals.device_s,
    )


@pytest.mark.parametrize("text", ["", "[]", "{}", '["a"]', "null", "[" * 9999])
def test_facts_that_are_none_are_taken_from_the_record(text: str) -> None:
    assert schema.unpack_facts({schema.FACTS: text}) is None


def test_a_trial_that_ends_later_is_there_at_the_next_question(filled: str) -> None:
    assert names(filled) == ["t0002", "t0001", "t0000"]
    put([make_record("t0003", time_s=0.5)], filled)
    assert names(filled) == ["t0003", "t0002", "t0001", "t0000"]


def test_an_answer_without_news_reads_no_trial_again(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names(filled)
    monkeypatch.setattr(schema, "unpack_facts", None)
    assert find_leaders(Store(filled)).trials[0].record.trial_id == "t0002"


def test_a_trial_that_is_re_clocked_changes_its_place(uri: str, cache: Path, store: Store) -> None:
    made = {f"t000{i}": make_record(f"t000{i}", time_s=3.0 - i) for i in range(3)}
    tracker = Tracker(store, study="study", study_tags={}, linger_s=0.02)
    tracker.reconcile(made)
    while tracker.expected:
        threading.Event().wait(0.05)
    assert names(uri) == ["t0002", "t0001", "t0000"]
    made["t0002"] = make_record("t0002", time_s=9.0)
    tracker.trials_reclocked(["t0002"])
    assert tracker.close(timeout_s=30) == ()
    assert names(uri) == ["t0001", "t0000", "t0002"]


def lost(path: Path) -> None:
    path.unlink()


def damaged(path: Path) -> None:
    path.write_bytes(b"no database at all" * 999)


def damaged_within(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)


def of_another_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE trials")
        db.execute("PRAGMA user_version = 99")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("harm", [lost, damaged, damaged_within, of_another_version, a_folder])
def test_an_index_that_cannot_be_used_is_made_again(
    uri: str, cache: Path, harm: Callable[[Path], None]
) -> None:
    put([make_record(f"t000{i}", time_s=3.0 - i) for i in range(3)], uri)
    expected = names(uri)
    index_of.cache_clear()  # As another process would find it.
    harm(index_file(cache))
    assert names(uri) == expected == names(uri)


def test_without_a_folder_to_write_to_it_is_in_memory(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("TUNE_SPEED_CACHE", str(tmp_path / "file"))
    put([make_record()], uri)
    assert names(uri) == ["t0000"]


def test_only_its_owner_may_read_it(uri: str, cache: Path) -> None:
    put([make_record()], uri)
    names(uri)
    assert index_file(cache).stat().st_mode & 0o077 == 0


def test_a_store_that_was_put_back_from_a_copy_is_read_as_it_is(uri: str, cache: Path) -> None:
    put([make_record("t0000", time_s=2.0)], uri)
    file = Store(uri).file
    assert file is not None
    with closing(sqlite3.connect(file)) as db, closing(sqlite3.connect(":memory:")) as copy:
        db.backup(copy)
        put([make_record("t0001", time_s=1.0)], uri)
        assert names(uri) == ["t0001", "t0000"]
        copy.backup(db)
    assert names(uri) == ["t0000"]


def test_a_first_reading_that_breaks_off_goes_on_from_there(
    uri: str, cache: Path, by_mlflow: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_mlflow()
    for number in range(6):  # One after another, so that each ends at a time of its own.
        put([make_record(f"t{number:04d}", time_s=9.0 - number)], uri)
    monkeypatch.setattr(changes, "MARGIN_MS", 1)
    monkeypatch.setattr(tables, "AT_ONCE", 2)
    unpack, seen = schema.unpack_facts, list[str]()

    def broken(tags: dict[str, str]) -> schema.Facts | None:
        seen.append(tags[schema.TRIAL_ID])
        if len(seen) == 5:
            raise ServiceError("the server is away")
        return unpack(tags)

    monkeypatch.setattr(schema, "unpack_facts", broken)
    with pytest.raises(ServiceError):
        names(uri)
    assert names(uri) == [f"t{number:04d}" for number in reversed(range(6))]
    assert seen[:5] == [f"t{number:04d}" for number in range(5)] and len(seen) <= 5 + 3


def test_several_readers_at_once_get_the_same(uri: str, cache: Path) -> None:
    put([make_record(f"t{i:04d}", time_s=9.0 - i) for i in range(8)], uri)
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(names(uri))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[f"t{i:04d}" for i in reversed(range(8))]] * 8


def test_a_second_filter_by_a_field_reads_no_records_but_what_it_takes(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(text: str) -> tuple[list[str], int]:
        counted: list[str] = []

        def counting(*of: Any) -> Iterator[TrackedTrial]:
            for trial in changes.tracked(*of):
                counted.append(trial.run_id)
                yield trial

        with monkeypatch.context() as patch:
            patch.setattr(queries, "tracked", counting)
            found = find_trials(Store(filled), Query(where=parse_where(text)))
        return [trial.record.trial_id for trial in found], len(counted)

    assert read("time_to_target_s < 2") == (["t0002"], 4)
    assert read("time_to_target_s > 2") == (["t0000"], 1)


def test_totals_are_those_of_all_trials(filled: str) -> None:
    made = [trial.record for trial in find_trials(Store(filled))]
    (totals,) = find_leaders(Store(filled), top=1).totals.values()
    assert totals == totals_of(made) and totals.trials == 3


def test_a_trial_of_an_older_version_has_the_same_facts(
    uri: str, cache: Path, store: Store
) -> None:
    put([make_record()], uri)
    (trial,) = find_trials(store)
    store.client.delete_tag(trial.run_id, schema.FACTS)
    shutil.rmtree(cache)
    (again,) = find_leaders(Store(uri)).trials
    assert again.record == trial.record


def test_facts_fit_a_tag_or_are_left_out() -> None:
    long: TrialRecord = make_record(study="s" * 6000)
    assert schema.FACTS not in schema.record_tags(long)
    assert len(json.dumps(schema.facts_of(make_record()))) < 500
