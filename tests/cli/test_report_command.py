"""`tune-speed report`, as a user runs it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.command import Done
from helpers.making import make_record

from tune_speed.core.errors import StorageError
from tune_speed.runtime.atomic_file import replace_text
from tune_speed.tracking import Store, Tracker

RECIPE = {
    "model": {"resnet20": {}},
    "optimizer": {"sgd": {"lr": 0.3}},
    "epochs": 2.5,
    "batch_size": 64,
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store = Store(f"sqlite:///{tmp_path / 'mlflow.db'}")
    tracker = Tracker(store, study="first", study_tags={"workload": "digits"}, linger_s=0.02)
    for i in range(3):
        record = make_record(f"t{i:04d}", time_s=1.0 + i, study="first")
        tracker.trial_finished(record=record.model_copy(update={"recipe": RECIPE}))
    assert tracker.close(timeout_s=60) == ()
    store.client.update_run(tracker.run_id, status="RUNNING")
    return tmp_path


@pytest.mark.slow
def test_report_writes_page_and_pictures_and_says_that_the_study_still_runs(
    store: Path, call: Callable[..., Done]
) -> None:
    done = call("report", "first", "--png", "slides", folder=store)
    assert done.code == 0, done.err
    assert "report.html: 3 trials" in done.out and "file://" in done.out
    assert "still running" in done.err
    assert "Still running." in (store / "report.html").read_text()
    pictures = {path.name for path in (store / "slides").iterdir()}
    assert {"best_so_far.png", "front.png"} <= pictures
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in (store / "slides").iterdir())


@pytest.mark.slow
def test_report_of_a_study_that_is_not_there_names_those_that_are(
    store: Path, call: Callable[..., Done]
) -> None:
    done = call("report", "fist", folder=store)
    assert done.code == 2
    assert "'first'" in done.err
    assert not (store / "report.html").exists()


def test_folder_in_the_place_of_the_page_leaves_no_rest(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(StorageError, match=r"it is a folder\. Move it away"):
        replace_text(tmp_path / "report.html", "text")
    assert os.listdir(tmp_path) == ["report.html"]
