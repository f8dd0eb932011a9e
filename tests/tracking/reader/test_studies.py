from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_record

from tune_speed.core.errors import ServiceError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.tracking import Store, Tracker
from tune_speed.tracking.reader.studies import list_studies

ODD = 'it\'s "odd" 100% \\ `x`/y'


def records() -> Iterator[TrialRecord]:
    for i, time_s in enumerate([4.0, 2.0, 3.0]):
        yield make_record(f"t{i:04d}", time_s=time_s, study="first", device="H200")
    yield make_record("t0003", Status.MISSED, study="first", device="A100")
    yield make_record("t0000", time_s=1.0, study=ODD, device="cpu 'x'")
    yield make_record("t0001", Status.FAILED, study=ODD, device="cpu 'x'")


def search(store: Store, study: str, made: list[TrialRecord], **settings: Any) -> Tracker:
    tracker = Tracker(store, study=study, study_tags={"workload": "digits"}, **settings)
    for record in made:
        tracker.trial_finished(record=record)
    assert tracker.close(timeout_s=30) == ()
    return tracker


@pytest.fixture(scope="module")
def filled(any_new_store: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A store with two studies, the first of two searches and a certification; one still runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("files"))
        store = Store(any_new_store)
        client = store.create()
        client.create_run(client.create_experiment("somebody else's"), run_name="t0000")
        first, odd = ([r for r in records() if r.study == study] for study in ("first", ODD))
        search(store, "first", first[:2], search_id="a")
        search(store, "first", first[2:], search_id="b")
        certified = [make_record(kind="certified", device="B200", time_s=0.1)]
        search(store, "first", certified, search_id="c", parent_kind="certification")
        client.update_run(search(store, ODD, odd).run_id, status="RUNNING")
        yield any_new_store


def test_studies_are_listed_with_what_they_hold(filled: str) -> None:
    found = {study.name: study for study in list_studies(Store(filled))}
    assert set(found) == {"first", ODD}
    first = found["first"]
    assert first.num_trials == {Status.REACHED: 3, Status.MISSED: 1}
    assert (first.best_time_s, first.best_trial, first.workload) == (2.0, "t0001", "digits")
    assert not first.is_running and found[ODD].is_running
    assert first.last_activity.startswith("20") and first.last_activity.endswith("+00:00")
    assert (first.device, found[ODD].device) == ("A100; H200", "cpu 'x'")


def test_tables_and_mlflow_list_the_same(
    filled: str, by_mlflow: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Store, "studies", None)  # MLflow is not asked.
        directly = list_studies(Store(filled))
    by_mlflow()
    assert len(directly) == 2 and directly == list_studies(Store(filled))


def test_a_study_in_the_trash_is_not_listed(store: Store) -> None:
    tracker = search(store, "study", [make_record()])
    store.client.delete_experiment(tracker.experiment_id)
    assert list_studies(store) == []


def test_a_search_that_has_no_trial_yet_is_listed(store: Store) -> None:
    search(store, "study", [])
    (study,) = list_studies(store)
    assert (study.device, study.last_activity, study.best_trial) == ("", "", None)


def test_no_studies_are_an_empty_list_and_no_store_an_error(uri: str, tmp_path: Path) -> None:
    assert list_studies(Store(uri)) == []
    with pytest.raises(ServiceError, match="no such file yet"):
        list_studies(Store(f"sqlite:///{tmp_path / 'none.db'}"))
