import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_evaluation, make_record, make_run
from helpers.reporting.server import wait_for
from helpers.tracking.stores import read_by_mlflow, store_of

from tune_speed.core.errors import ConfigError, ServiceError
from tune_speed.core.records import Status, TrialRecord
from tune_speed.reporting.study.reader import StudyReader, read_study
from tune_speed.tracking import Store, Tracker, schema
from tune_speed.tracking.reader import changes

STARTS = {"searched": "optimizer, optimizer.sgd.lr", "trials": "9"}
RECIPE = {"optimizer": {"sgd": {"lr": 0.1}}, "batch_size": 32}


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return store_of([], folder=tmp_path)


@pytest.fixture
def open_tracker(uri: str) -> Iterator[Callable[..., Tracker]]:
    trackers: list[Tracker] = []

    def make(**settings: Any) -> Tracker:
        settings = {"study": "study", "study_tags": STARTS, "linger_s": 0.01, **settings}
        trackers.append(Tracker(Store(uri), **settings))
        return trackers[-1]

    yield make
    for tracker in trackers:
        tracker.close(timeout_s=5)


def record(number: int, time_s: float | None = 1.0, **fields: Any) -> TrialRecord:
    """A trial with a curve of three, which finished `number` seconds after ten."""
    status = Status.MISSED if time_s is None else Status.REACHED
    curve = tuple(make_evaluation(step=i, train_s=i / 3) for i in (1, 2, 3))
    run = make_run(status, time_s=time_s or 1.0).model_copy(update={"evaluations": curve})
    made = make_record(f"t{number:04d}", status, runs=(run,), **fields)
    return made.model_copy(update={"finished_at": f"2026-01-01T00:00:{10 + number}.000+00:00"})


def fill(tracker: Tracker, records: list[TrialRecord]) -> None:
    for each in records:
        tracker.trial_finished(record=each)
    assert tracker.close(timeout_s=30) == ()


def start(tracker: Tracker, trial_id: str) -> None:
    tracker.trial_started(trial_id=trial_id, params={"optimizer": "sgd"}, recipe=RECIPE)


def set_status(uri: str, trial_id: str | None, status: str) -> None:
    """Gives a trial's run, or the search's, a status; as a killed driver leaves them."""
    client = Store(uri).create()
    key, value = (schema.TRIAL_ID, trial_id) if trial_id else (schema.KIND, schema.SEARCH)
    experiment = client.get_experiment_by_name("study").experiment_id
    for run in client.search_runs([experiment], f"tags.`{key}` = '{value}'"):
        client.update_run(run.info.run_id, status=status)


def statuses(uri: str) -> list[str]:
    client = Store(uri).create()
    experiment = client.get_experiment_by_name("study").experiment_id
    runs = client.search_runs([experiment], order_by=["attributes.start_time ASC"])
    found = {run.data.tags.get(schema.TRIAL_ID): run.info.status for run in runs}
    return [found[trial_id] for trial_id in sorted(filter(None, found))]


def ids(trials: Any) -> list[str]:
    return [trial.record.trial_id for trial in trials]


def test_trials_come_in_the_order_in_which_they_finished(uri: str, open_tracker: Any) -> None:
    fill(open_tracker(), [record(2), record(0), record(1, kind="certified"), record(3)])
    view = read_study(Store(uri), "study")
    assert ids(view.trials) == ["t0000", "t0002", "t0003"]
    assert ids(view.certified) == ["t0001"]
    assert not view.is_running and view.running == () and view.interrupted == 0
    assert [board.kind for board in view.boards] == ["certified", "estimate"]


def test_curves_come_for_the_fastest_of_each_part_and_the_certified(
    uri: str, open_tracker: Any
) -> None:
    estimates = [record(i, 10.0 - i) for i in range(4)] + [record(4, None)]
    others = [record(5 + i, 1.0 + i, device="H200") for i in range(2)]
    fill(open_tracker(), [*estimates, *others, record(9, 50.0, kind="certified")])
    view = read_study(Store(uri), "study", finalists=1)
    with_curve = [trial for trial in (*view.trials, *view.certified) if trial.has_curve]
    assert ids(with_curve) == ["t0003", "t0005", "t0009"]
    assert all(len(trial.record.runs[0].evaluations) == 3 for trial in with_curve)


def test_misses_are_finalists_where_too_few_met_the_target(uri: str, open_tracker: Any) -> None:
    fill(open_tracker(), [record(0, None), record(1, None)])
    assert all(trial.has_curve for trial in read_study(Store(uri), "study").trials)
    assert not any(trial.has_curve for trial in read_study(Store(uri), "study", finalists=0).trials)


def test_a_trial_whose_files_are_gone_has_no_curve(
    uri: str, tmp_path: Path, open_tracker: Any
) -> None:
    fill(open_tracker(), [record(0)])
    shutil.rmtree(tmp_path / "mlartifacts")
    (trial,) = read_study(Store(uri), "study").trials
    assert not trial.has_curve and len(trial.record.runs[0].evaluations) == 1


def test_a_running_trial_comes_with_what_was_chosen_and_its_latest_evaluation(
    uri: str, open_tracker: Any
) -> None:
    tracker = open_tracker()
    start(tracker, "t0000")
    tracker.trial_evaluated(trial_id="t0000", evaluation=make_evaluation(accuracy=0.5, train_s=2.0))
    wait_for(lambda: any("accuracy" in t.metrics for t in read_study(Store(uri), "study").running))
    view = read_study(Store(uri), "study")
    (trial,) = view.running
    assert (trial.trial_id, trial.train_s) == ("t0000", 2.0)
    assert (trial.metrics["accuracy"], trial.metrics["macro_f1"]) == (0.5, 0.25)
    assert trial.params == {"optimizer": "sgd", "optimizer.sgd.lr": "0.1"}
    assert view.is_running and view.trials == () and view.boards == ()


def test_a_trial_of_a_search_that_ended_is_interrupted_and_not_running(
    uri: str, open_tracker: Any
) -> None:
    tracker = open_tracker()
    start(tracker, "t0000")
    tracker.close(timeout_s=20, interrupted=True)
    assert read_study(Store(uri), "study").interrupted == 1
    set_status(uri, "t0000", "RUNNING")
    view = read_study(Store(uri), "study")
    assert view.running == () and view.interrupted == 1


def test_an_interrupted_trial_that_ran_again_is_no_longer_interrupted(
    uri: str, open_tracker: Any
) -> None:
    tracker = open_tracker()
    start(tracker, "t0000")
    tracker.close(timeout_s=20, interrupted=True)
    reader = StudyReader(Store(uri), "study")
    assert reader.read().interrupted == 1
    again = open_tracker()
    again.trial_started(trial_id="t0000", params={}, recipe={"batch_size": 64})  # Another run.
    fill(again, [record(0)])
    assert reader.read().interrupted == 0
    assert ids(read_study(Store(uri), "study").trials) == ["t0000"]


def test_a_search_comes_with_its_tags_and_times(uri: str, open_tracker: Any) -> None:
    fill(open_tracker(study_tags={"policy": "random"}), [record(0)])
    fill(open_tracker(parent_kind="certification", search_id="2"), [record(0, kind="certified")])
    search, certification = read_study(Store(uri), "study").searches
    assert (search.tags["policy"], search.tags["kind"]) == ("random", "search")
    assert certification.tags["kind"] == "certification"
    assert search.started_at[:10] == search.updated_at[:10] and not search.is_running


def test_a_resumed_search_is_tagged_with_what_it_is_now(uri: str, open_tracker: Any) -> None:
    fill(open_tracker(), [record(0)])
    fill(open_tracker(study_tags={**STARTS, "trials": "20"}), [record(1)])
    (search,) = read_study(Store(uri), "study").searches
    assert search.tags["trials"] == "20"


def test_an_experiment_without_any_trial_can_be_read(uri: str) -> None:
    Store(uri).create().create_experiment("study", tags={schema.KIND: schema.STUDY_KIND})
    view = read_study(Store(uri), "study")
    assert view.parts == view.searches == view.trials == view.boards == ()


def test_an_unknown_study_is_told_with_those_that_there_are(uri: str, open_tracker: Any) -> None:
    fill(open_tracker(), [record(0)])
    with pytest.raises(ConfigError, match="did you mean `study`"):
        read_study(Store(uri), "studi")


def test_a_missing_store_is_told_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="no such file yet"):
        read_study(Store(f"sqlite:///{tmp_path / 'none.db'}"), "study")
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_trial_that_has_ended_is_asked_for_only_once(
    uri: str, open_tracker: Any, monkeypatch: pytest.MonkeyPatch, is_direct: bool, tmp_path: Path
) -> None:
    fill(open_tracker(), [record(i) for i in range(8)])
    Store(uri).create()  # Loaded before its method is replaced.
    from mlflow import MlflowClient

    asked, unpacked = list[int](), list[str]()
    ask, unpack = MlflowClient.search_runs, schema.unpack_record

    def count(client: Any, *arguments: Any, **settings: Any) -> Any:
        page = ask(client, *arguments, **settings)
        asked.append(len(page))
        return page

    def count_records(tags: Any) -> Any:
        found = unpack(tags)
        unpacked.append(found.trial_id if found else "")
        return found

    monkeypatch.setattr(MlflowClient, "search_runs", count)
    monkeypatch.setattr(schema, "unpack_record", count_records)
    if not is_direct:
        read_by_mlflow(monkeypatch, tmp_path)
    monkeypatch.setattr(changes, "MARGIN_MS", 1)
    reader = StudyReader(Store(uri), "study")
    first = reader.read()
    assert len(first.trials) == 8 and sorted(unpacked) == sorted(
        t.record.trial_id for t in first.trials
    )
    assert (sum(asked) >= 8) != is_direct
    tracker = open_tracker()
    tracker.trial_finished(record=record(30, 0.5))
    tracker.close(timeout_s=20)
    asked.clear()
    unpacked.clear()
    again = reader.read()
    assert ids(again.trials) == [*ids(first.trials), "t0030"]
    # MLflow's client cannot say which times a search corrected at its end: it gives all once more.
    assert sum(asked) <= (4 if is_direct else 11) and unpacked == ["t0030"]


def test_a_study_reads_alike_from_its_tables_and_through_mlflow(
    uri: str, open_tracker: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tracker = open_tracker()
    for number in range(40):
        tracker.trial_finished(record=record(number, None if number % 3 else 0.5))
    start(tracker, "t0050")
    tracker.trial_interrupted(trial_id="t0050", reason="Ctrl-C")
    tracker.close(timeout_s=60)
    views = [read_study(Store(uri), "study")]
    read_by_mlflow(monkeypatch, tmp_path)
    views.append(read_study(Store(uri), "study"))
    one, other = (view.__dict__ | {"read_at": ""} for view in views)
    assert one == other and len(views[0].trials) == 40 and views[0].interrupted == 1


def test_trials_that_end_after_the_writers_clock_was_set_back_are_seen(
    uri: str, open_tracker: Any
) -> None:
    tracker = open_tracker()
    for number in range(2):
        start(tracker, f"t{number:04d}")
    tracker.trial_finished(record=record(0))
    wait_for(lambda: statuses(uri) == ["FINISHED", "RUNNING"])
    with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as database, database:
        database.execute("UPDATE runs SET end_time = end_time + 3600000")
    reader = StudyReader(Store(uri), "study")
    first = reader.read()
    assert ids(first.trials) == ["t0000"] and len(first.running) == 1
    tracker.trial_finished(record=record(1))
    wait_for(lambda: statuses(uri) == ["FINISHED"] * 2)
    assert ids(reader.read().trials) == ["t0000", "t0001"]
    tracker.trial_finished(record=record(2))  # Nobody saw it run.
    wait_for(lambda: statuses(uri) == ["FINISHED"] * 3)
    assert ids(reader.read().trials) == ["t0000", "t0001", "t0002"]


def test_reading_goes_on_while_a_search_writes(uri: str, open_tracker: Any) -> None:
    tracker = open_tracker()
    seen = [0]
    for number in range(12):
        start(tracker, f"t{number:04d}")
        tracker.trial_finished(record=record(number))
        if number % 4 == 0:
            seen.append(len(read_study(Store(uri), "study").trials))
    tracker.close(timeout_s=60)
    assert seen == sorted(seen)
    assert len(read_study(Store(uri), "study").trials) == 12


def test_the_study_names_its_place_in_mlflow(uri: str, open_tracker: Any) -> None:
    fill(open_tracker(), [record(0)])
    view = read_study(Store(uri), "study")
    assert view.url is None and view.trials[0].url is None
    assert view.ui_command == f"mlflow ui --backend-store-uri {uri}"
