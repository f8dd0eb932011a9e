import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from helpers.making import make_evaluation, make_record, make_run
from helpers.tracking.stores import put

from tune_speed.core.errors import ConfigError, ServiceError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.tracking import Query, Store, Tracker, find_trial, find_trials, schema
from tune_speed.tracking.reader.changes import experiments_of

ODD = 'it\'s "odd" 100% \\ `x`/y'


def records() -> Iterator[TrialRecord]:
    for i, time_s in enumerate([4.0, 2.0, 3.0]):
        yield make_record(f"t{i:04d}", time_s=time_s, study="first", device="H200")
    yield make_record("t0003", Status.MISSED, study="first", device="H200")
    yield make_record("t0000", time_s=1.0, study=ODD, device="cpu 'x'")
    yield make_record("t0001", Status.FAILED, study=ODD, device="cpu 'x'")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> str:
    """A store with two studies; a trial of the first still runs, another was interrupted."""
    folder = tmp_path_factory.mktemp("filled")
    shutil.copy(empty_store, folder / "mlflow.db")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    store = Store(uri)
    client = store.create()
    client.create_run(client.create_experiment("somebody else's"), run_name="t0000")
    for study in ("first", ODD):
        tracker = Tracker(store, study=study, study_tags={"workload": "digits"}, linger_s=0.02)
        for record in records():
            if record.study == study:
                tracker.trial_finished(record=record)
        tracker.trial_started(trial_id="t0008", params={}, recipe={})
        assert tracker.close(timeout_s=30) == ()
    (run,) = client.search_runs([tracker.experiment_id], f"tags.`{schema.TRIAL_ID}` = 't0008'")
    client.update_run(run.info.run_id, status="RUNNING")
    client.update_run(tracker.run_id, status="RUNNING")
    return uri


def found(uri: str, **filters: Any) -> list[tuple[str, str]]:
    return [(t.record.study, t.record.trial_id) for t in find_trials(Store(uri), Query(**filters))]


def test_all_finished_trials_come_fastest_first_and_misses_last(filled: str) -> None:
    trials = found(filled)
    fast = [(ODD, "t0000"), ("first", "t0001"), ("first", "t0002"), ("first", "t0000")]
    assert trials[:4] == fast
    assert set(trials[4:]) == {("first", "t0003"), (ODD, "t0001")}


def test_records_come_back_with_their_last_evaluation(filled: str) -> None:
    (trial,) = find_trials(Store(filled), Query(study="first", limit=1))
    assert trial.record == next(r for r in records() if r.trial_id == "t0001")
    assert not trial.has_curve


def test_a_trial_is_found_by_run_id_by_its_beginning_and_by_name(filled: str) -> None:
    trial = find_trials(Store(filled), Query(study=ODD, limit=1))[0]
    for name in (trial.run_id, trial.run_id[:8], f"{ODD}/t0000"):
        assert find_trial(Store(filled), name).run_id == trial.run_id


def test_the_curve_comes_from_the_artifact(uri: str, client: Any) -> None:
    evaluations = tuple(make_evaluation(step=i, train_s=float(i)) for i in range(50))
    run = make_run().model_copy(update={"evaluations": evaluations, "traceback": "x" * 20000})
    put([make_record(runs=(run,))], uri)
    trial = find_trial(Store(uri), "study/t0000")
    assert trial.has_curve and trial.record == make_record(runs=(run,))


def test_curves_of_a_whole_study_come_on_demand(uri: str, client: Any) -> None:
    evaluations = tuple(make_evaluation(step=i, train_s=float(i)) for i in range(5))
    run = make_run().model_copy(update={"evaluations": evaluations})
    put([make_record(f"t000{number}", runs=(run,)) for number in range(3)], uri)
    assert list(Store(uri).studies()) == ["study"]
    for with_curves, length in ((True, 5), (False, 1)):
        trials = find_trials(Store(uri), Query(study="study"), with_curve=with_curves)
        assert [len(t.record.runs[0].evaluations) for t in trials] == [length] * 3
        assert [t.has_curve for t in trials] == [with_curves] * 3


def test_without_its_files_a_trial_is_shown_without_its_curve(
    uri: str, client: Any, tmp_path: Path
) -> None:
    put([make_record()], uri)
    shutil.rmtree(tmp_path / "mlartifacts")
    trial = find_trial(Store(uri), "study/t0000")
    assert not trial.has_curve and trial.record.trial_id == "t0000"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("deadbeef", "there is no such trial.*The latest there are .*first/t000"),
        ("t0001", "study/trial, but there is no such trial"),
        ("first/t0009", r"no such trial\. The latest there are first/t"),
        ("fist/t0000", "there is no study 'fist' in .*did you mean `first`\\? It holds"),
        ("first", "it is a study. Its board: tune-speed leaderboard --study first"),
        ("first/t0008", "has not finished: it is interrupted"),
        (f"{ODD}/t0008", "has not finished: it is interrupted"),
        ("'; DROP TABLE runs", "there is no such trial"),
        ("%", "there is no such trial"),
    ],
)
def test_names_that_fit_nothing_are_explained(filled: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        find_trial(Store(filled), name)


def test_the_search_itself_is_no_trial(filled: str, client: Any) -> None:
    store = Store(filled).create()
    experiment = store.get_experiment_by_name("first").experiment_id
    (search,) = store.search_runs([experiment], f"tags.`{schema.KIND}` = '{schema.SEARCH}'")
    with pytest.raises(ConfigError, match="it is the search itself"):
        find_trial(Store(filled), search.info.run_id)


def test_a_name_that_fits_two_trials_lists_them(uri: str) -> None:
    for search_id in ("a", "b"):
        tracker = Tracker(
            Store(uri), study="study", study_tags={}, search_id=search_id, linger_s=0.02
        )
        tracker.trial_finished(record=make_record())
        tracker.close(timeout_s=20)
    with pytest.raises(ConfigError, match=r"fits study/t0000 \(run \w{32}\), study/t0000"):
        find_trial(Store(uri), "study/t0000")


def test_a_study_made_between_two_queries_is_found(filled: str) -> None:
    store = Store(filled)
    (experiment,) = experiments_of(store, "first")
    with patch.object(store.client, "get_experiment_by_name", return_value=None):
        assert experiments_of(store, "first") == [experiment]


def test_an_empty_or_missing_store_says_what_to_do(uri: str, client: Any, tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"there is no study in .* yet.*tune-speed search"):
        find_trials(Store(uri))
    with pytest.raises(ServiceError, match="no such file yet"):
        find_trials(Store(f"sqlite:///{tmp_path / 'none.db'}"))


def test_a_record_that_cannot_be_read_is_left_out_and_named(
    uri: str, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    put([make_record("t0000"), make_record("t0001")], uri)
    broken = find_trial(Store(uri), "study/t0000").run_id
    client.set_tag(broken, schema.RECORD, '{"from": "another version"}')
    assert found(uri) == [("study", "t0001")]
    assert broken in caplog.text


def test_links_lead_to_the_page_of_a_run(filled: str) -> None:
    (trial,) = find_trials(Store(filled), Query(limit=1))
    place = trial.experiment_id, trial.run_id
    server, page = Store("http://me:pw@host:5000"), "http://host:5000/#/experiments/{}/runs/{}"
    assert server.page(*place) == page.format(*place) and Store(filled).page(*place) is None
    command = Store("sqlite:////a b/m.db").ui_command
    assert command == "mlflow ui --backend-store-uri 'sqlite:////a b/m.db'"
    assert server.ui_command is None
