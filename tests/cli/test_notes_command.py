"""`note` and `delete`: what people say of trials, and studies that they no longer want."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.command import run_inside
from helpers.making import make_record

from tune_speed.core.event_log import EventLog
from tune_speed.core.records import Status
from tune_speed.reporting.study.reader import read_study
from tune_speed.tracking import Store, Tracker, list_studies
from tune_speed.tracking.notes import Note, read_notes

Call = Callable[..., str]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the studies `mine` and `other`, of two trials each."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    uri = f"sqlite:///{path}"
    for study in ("mine", "other"):
        tracker = Tracker(Store(uri), study=study, study_tags={"workload": "digits"}, linger_s=0.02)
        tracker.trial_finished(record=make_record("t0000", time_s=2.0, study=study))
        tracker.trial_finished(record=make_record("t0001", Status.MISSED, study=study))
        tracker.close(timeout_s=20)
    return path


@pytest.fixture
def uri(filled: Path, tmp_path: Path) -> str:
    shutil.copytree(filled.parent, tmp_path / "store")
    return f"sqlite:///{tmp_path / 'store' / 'mlflow.db'}"


@pytest.fixture
def call(uri: str, tmp_path: Path) -> Call:
    """Runs a command: `call(*arguments, code=0)` returns what it printed, stdout first."""
    places = {"MLFLOW_TRACKING_URI": uri, "TUNE_SPEED_STUDIES": str(tmp_path / "studies")}

    def run(*arguments: str, code: int = 0) -> str:
        done = run_inside(*arguments, folder=tmp_path, **places)
        assert done.code == code, done.err
        return done.out + done.err

    return run


def test_a_note_is_seen_wherever_its_trial_is(call: Call, uri: str) -> None:
    assert call("note", "mine/t0000", "plateaus", "--star") == "mine/t0000  ★ plateaus\n"
    assert "note: ★ plateaus" in call("show", "mine/t0000")
    shown = json.loads(call("show", "mine/t0000", "--json"))
    assert (shown["note"], shown["starred"]) == ("plateaus", True)
    assert "mine/t0000: ★ plateaus" in call("list", "trials", "--study", "mine")
    said = {trial.record.trial_id: trial.note for trial in read_study(Store(uri), "mine").trials}
    assert said == {"t0000": Note("plateaus", True), "t0001": Note()}
    assert read_notes(Store(uri), "other") == {}


def test_a_trial_is_shown_though_its_study_was_renamed_in_mlflow(call: Call, uri: str) -> None:
    call("note", "mine/t0000", "plateaus")
    client = Store(uri).create()
    client.rename_experiment(client.get_experiment_by_name("mine").experiment_id, "ours")
    assert "note: plateaus" in call("show", "ours/t0000")


def test_each_part_of_a_note_changes_alone_and_can_be_taken_back(call: Call, uri: str) -> None:
    call("note", "mine/t0001", "why?")
    call("note", "mine/t0001", "--star")
    assert read_notes(Store(uri), "mine") == {"t0001": Note("why?", True)}
    call("note", "mine/t0001", "")
    assert json.loads(call("note", "mine", "--json")) == {
        "mine/t0001": {"text": "", "starred": True}
    }
    assert "mine/t0001  no note" in call("note", "mine/t0001", "--no-star")
    assert "no notes in mine" in call("note", "mine")


def test_a_note_needs_a_trial_and_something_to_say(call: Call, uri: str) -> None:
    assert "no such trial" in call("note", "mine/t0009", "x", code=2)
    assert "a text or --star" in call("note", "mine/t0000", code=2)
    assert "at most 2,000 characters" in call("note", "mine/t0000", "x" * 2001, code=2)
    assert read_notes(Store(uri), "mine") == {}


def test_a_deleted_study_is_gone_and_its_name_is_free(call: Call, uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "studies" / "mine"
    folder.mkdir(parents=True)
    (folder / "ledger.jsonl").touch()
    told = json.loads(call("delete", "mine", "--yes", "--json"))
    assert (told["study"], told["trials"]) == ("mine", 2) and not folder.exists()
    assert [study.name for study in list_studies(Store(uri))] == ["other"]
    client = Store(uri).create()
    tracker = Tracker(Store(uri), study="mine", study_tags={}, linger_s=0.02)
    tracker.trial_finished(record=make_record("t0000", time_s=1.0, study="mine"))
    assert tracker.close(timeout_s=20) == ()
    assert {study.name for study in list_studies(Store(uri))} == {"mine", "other"}
    (trashed,) = client.search_experiments(view_type=2)  # ViewType.DELETED_ONLY
    assert trashed.name == told["in_mlflow_trash"]
    assert len(client.search_runs([trashed.experiment_id], run_view_type=3)) > 2


def test_nothing_is_deleted_without_a_yes_or_while_it_is_searched(
    call: Call, uri: str, tmp_path: Path
) -> None:
    assert "give --yes" in call("delete", "mine", code=2)
    folder = tmp_path / "studies" / "mine"
    with EventLog(folder / "ledger.jsonl", what="a study"):
        assert "another one holds" in call("delete", "mine", "--yes", code=2)
    assert folder.exists() and len(list_studies(Store(uri))) == 2


def test_only_a_study_can_be_deleted(call: Call, tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    assert "did you mean `mine`" in call("delete", "mina", "--yes", code=2)
    assert "must match" in call("delete", "../studies", "--yes", code=2)
    assert (tmp_path / "studies").exists()


@pytest.mark.parametrize(
    "log", ["certify-1.jsonl", "target-0.9/certify-2.jsonl", "ablation/a-1.jsonl"]
)
def test_study_is_not_deleted_while_something_of_it_runs(
    call: Call, uri: str, tmp_path: Path, log: str
) -> None:
    folder = tmp_path / "studies" / "mine"
    with EventLog(folder / log, what="a certification"):
        said = call("delete", "mine", "--yes", code=2)
    named = f" (process {os.getpid()})" if os.path.exists("/proc/locks") else ""
    assert f"another one holds {folder / log}{named}." in said
    assert (folder / log).exists() and len(list_studies(Store(uri))) == 2


@pytest.mark.parametrize("is_there", [True, False])
def test_of_a_study_behind_a_link_the_link_is_deleted(
    call: Call, uri: str, tmp_path: Path, is_there: bool
) -> None:
    disk, folder = tmp_path / "disk", tmp_path / "studies" / "mine"
    folder.parent.mkdir()
    if is_there:
        disk.mkdir()
        (disk / "ledger.jsonl").touch()
    folder.symlink_to(disk)
    call("delete", "mine", "--yes")
    assert not folder.is_symlink() and [study.name for study in list_studies(Store(uri))] == [
        "other"
    ]
    assert (disk / "ledger.jsonl").exists() == is_there
