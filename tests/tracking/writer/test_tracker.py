import logging
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_evaluation, make_record, make_run
from helpers.tracking.stores import check_each_once, runs_of_searches

from tune_speed.core.comparability import board_key
from tune_speed.core.errors import ServiceError, StorageError
from tune_speed.core.records import Recommended, Status, StepTime, Timing, TrialRecord
from tune_speed.core.words import StopReason
from tune_speed.tracking import Store, Tracker, schema
from tune_speed.tracking.store.sqlite import check
from tune_speed.tracking.writer.descriptions import NOTE, SearchPlan
from tune_speed.tracking.writer.tracker import Undelivered, deliver, names_of

Make = Callable[..., Tracker]
RECIPE = make_record().recipe


def start(tracker: Tracker, trial_id: str = "t0000", *, batch_size: int = 32) -> None:
    recipe = {**RECIPE, "batch_size": batch_size}
    tracker.trial_started(trial_id=trial_id, params={"batch_size": batch_size}, recipe=recipe)


def runs_of(client: Any, tracker: Tracker) -> dict[str, Any]:
    runs = client.search_runs([tracker.experiment_id], f"tags.`{schema.TRIAL_ID}` != ''")
    by_id = {run.data.tags[schema.TRIAL_ID]: run for run in runs}
    assert len(by_id) == len(runs)
    return by_id


def wait_for(condition: Callable[[], object], *, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.02)


def leave_running(client: Any, tracker: Tracker, *trial_ids: str) -> None:
    tracker.close(timeout_s=20)
    for trial_id in trial_ids:
        client.update_run(runs_of(client, tracker)[trial_id].info.run_id, status="RUNNING")


@contextmanager
def locked(tmp_path: Path) -> Iterator[None]:
    """Nobody else can write to the store meanwhile."""
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield


def test_a_trial_becomes_one_run_with_all_that_belongs_to_it(
    client: Any, make_tracker: Make
) -> None:
    record = make_record()
    tracker = make_tracker(study_tags={"workload": "digits", "space_hash": "s"})
    start(tracker)
    tracker.trial_evaluated(trial_id="t0000", evaluation=record.runs[0].evaluations[0])
    tracker.trial_finished(record=record)
    assert tracker.close(timeout_s=20) == ()
    run = runs_of(client, tracker)["t0000"]
    assert run.info.run_name == "t0000" and run.info.status == "FINISHED"
    assert run.data.tags["mlflow.parentRunId"] == tracker.run_id
    assert run.data.params == {"batch_size": "32", "model.resnet20": "{}"}
    assert run.data.metrics["time_to_target_s"] == 1.0 and run.data.metrics["reached"] == 1.0
    assert run.data.tags["tune_speed.env.torch"] == "2.15.0"
    assert {f.path for f in client.list_artifacts(run.info.run_id)} == {
        "recipe.yaml",
        "environment.json",
        "record.json",
    }


def test_curves_stand_at_their_steps_and_training_seconds(client: Any, make_tracker: Make) -> None:
    tracker = make_tracker()
    start(tracker)
    for i in range(5):
        evaluation = make_evaluation(step=10 * i, train_s=1.5 * i, accuracy=i / 10)
        tracker.trial_evaluated(trial_id="t0000", evaluation=evaluation)
        time.sleep(0.03)
    tracker.close(timeout_s=20)
    run = runs_of(client, tracker)["t0000"].info
    curve = sorted(client.get_metric_history(run.run_id, "accuracy"), key=lambda m: m.step)
    assert [(m.step, m.value) for m in curve] == [(10 * i, i / 10) for i in range(5)]
    assert [m.timestamp - run.start_time for m in curve] == [0, 1500, 3000, 4500, 6000]


def test_a_running_trial_is_seen_before_it_ends(client: Any, make_tracker: Make) -> None:
    tracker = make_tracker()
    start(tracker)
    tracker.trial_evaluated(trial_id="t0000", evaluation=make_evaluation(accuracy=0.5))
    wait_for(lambda: any("accuracy" in r.data.metrics for r in runs_of(client, tracker).values()))
    run = runs_of(client, tracker)["t0000"]
    assert run.info.status == "RUNNING" and run.data.tags[schema.STATUS] == "running"
    assert client.get_run(tracker.run_id).info.status == "RUNNING"


def test_every_status_ends_the_run(client: Any, make_tracker: Make) -> None:
    tracker = make_tracker()
    for i, status in enumerate(Status):
        start(tracker, f"t{i:04d}")
        tracker.trial_finished(record=make_record(f"t{i:04d}", status))
    assert tracker.close(timeout_s=20) == ()
    runs = runs_of(client, tracker)
    for i, status in enumerate(Status):
        run = runs[f"t{i:04d}"]
        assert run.info.status == ("FAILED" if status is Status.FAILED else "FINISHED")
        assert run.data.tags[schema.STATUS] == status.value
        assert ("time_to_target_s" in run.data.metrics) == (status is Status.REACHED)


def test_descriptions_follow_the_search(client: Any, make_tracker: Make) -> None:
    plan = SearchPlan(study="study", workload=make_record().workload, workload_name="digits")
    tracker = make_tracker(plan=plan)
    start(tracker)
    start(tracker, "t0001")
    tracker.trial_finished(record=make_record())
    tracker.close(timeout_s=20, interrupted=True)
    runs = runs_of(client, tracker)
    first, second = runs["t0000"], runs["t0001"]
    assert f"tune-speed show {first.info.run_id}" in first.data.tags[NOTE]
    assert second.data.tags[NOTE].startswith("**interrupted**")
    own = client.get_run(tracker.run_id).data.tags[NOTE]
    place = f"#/experiments/{tracker.experiment_id}/runs/{first.info.run_id}"
    assert own.startswith("**1 trial finished**: 1 reached.") and f"[t0000]({place})" in own
    assert first.data.tags["tune_speed.searched"] == "batch_size"


def test_the_searchs_own_run_counts_and_ends(client: Any, make_tracker: Make) -> None:
    tracker = make_tracker()
    tracker.trial_finished(record=make_record("t0000", Status.MISSED))
    tracker.trial_finished(record=make_record("t0001", time_s=3.0))
    tracker.trial_finished(record=make_record("t0002", time_s=2.0))
    tracker.close(timeout_s=20)
    parent = client.get_run(tracker.run_id)
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["trials"] == 3.0 and parent.data.metrics["trials_reached"] == 2.0
    assert parent.data.metrics["best_time_to_target_s"] == 2.0
    assert parent.data.tags[schema.BEST_TRIAL] == "t0002"


def test_the_searchs_own_run_says_what_is_recommended(client: Any, make_tracker: Make) -> None:
    tracker = make_tracker()
    record = make_record("t0000", time_s=3.0)
    tracker.trial_finished(record=record)
    tracker.trial_finished(record=make_record("t0001", time_s=2.0))
    best = Recommended(study="s", trial_id="t0000", runs=4, hits=4, expected_s=3.1)
    tracker.recommend((best,))
    tracker.close(timeout_s=20)
    tags = client.get_run(tracker.run_id).data.tags
    board, (found,) = schema.unpack_favourites(tags)
    assert board == schema.board_id(board_key(record))
    assert client.get_run(found.run_id).data.tags[schema.TRIAL_ID] == "t0000"
    assert found.model_copy(update={"run_id": ""}) == best
    assert tags[schema.BEST_TRIAL] == "t0001"


def test_what_still_runs_at_the_end_is_killed(client: Any, make_tracker: Make) -> None:
    tracker = make_tracker()
    start(tracker)
    assert tracker.close(timeout_s=20, interrupted=True) == ()
    assert runs_of(client, tracker)["t0000"].info.status == "KILLED"
    assert client.get_run(tracker.run_id).info.status == "KILLED"


def test_an_interrupted_trial_goes_on_in_its_run(client: Any, make_tracker: Make) -> None:
    first = make_tracker()
    start(first)
    first.trial_interrupted(trial_id="t0000", reason="Ctrl-C")
    first.close(timeout_s=20)
    killed = runs_of(client, first)["t0000"]
    second = make_tracker()
    start(second)
    wait_for(lambda: runs_of(client, second)["t0000"].info.status == "RUNNING")
    second.trial_finished(record=make_record())
    second.close(timeout_s=20)
    run = runs_of(client, second)["t0000"]
    assert killed.info.status == "KILLED" and killed.data.tags[schema.STOP_REASON] == "Ctrl-C"
    assert run.info.run_id == killed.info.run_id and run.info.status == "FINISHED"
    assert second.run_id == first.run_id


def test_a_trial_that_is_run_again_within_a_search_is_one_run(
    client: Any, make_tracker: Make
) -> None:
    tracker = make_tracker()
    start(tracker)
    tracker.trial_interrupted(trial_id="t0000", reason="its process died")
    start(tracker)
    tracker.trial_finished(record=make_record())
    assert tracker.close(timeout_s=20) == ()
    assert runs_of(client, tracker)["t0000"].info.status == "FINISHED"


def evaluate(tracker: Tracker, *, slowness: float) -> None:
    for step in range(3):
        evaluation = make_evaluation(step=step, train_s=slowness * step)
        tracker.trial_evaluated(trial_id="t0000", evaluation=evaluation)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_curve_that_broke_off_does_not_stand_beside_the_new_one(
    client: Any, make_tracker: Make, uri: str, is_resumed: bool
) -> None:
    tracker = make_tracker()
    start(tracker)
    evaluate(tracker, slowness=1.0)
    wait_for(lambda: any(r.data.metrics for r in runs_of(client, tracker).values()))
    tracker.trial_interrupted(trial_id="t0000", reason="its process died")
    if is_resumed:
        tracker.close(timeout_s=20)
        tracker = make_tracker()
    start(tracker)
    evaluate(tracker, slowness=2.0)
    tracker.trial_finished(record=make_record(time_s=20.0))
    assert tracker.close(timeout_s=20) == ()
    (run,) = check_each_once(uri, "study", {"t0000": "FINISHED"})
    assert run.steps() == [0, 1, 2, 10]
    curve = client.get_metric_history(run.run_id, "train_s")
    assert sorted(m.value for m in curve) == [0.0, 2.0, 4.0, 20.0]


def test_the_searchs_own_metrics_are_there_once_however_often_it_is_resumed(
    make_tracker: Make, uri: str
) -> None:
    records = [make_record(f"t{i:04d}") for i in range(3)]
    for number in (2, 2, 3, 3):
        tracker = make_tracker()
        tracker.reconcile({record.trial_id: record for record in records[:number]})
        assert tracker.close(timeout_s=20) == ()
    check_each_once(uri, "study", {record.trial_id: "FINISHED" for record in records})
    (search,) = runs_of_searches(uri, "study")
    assert search.status == "FINISHED" and search.steps("trials") == [2, 3]


def test_a_run_that_contradicts_the_new_start_is_replaced(client: Any, make_tracker: Make) -> None:
    first = make_tracker()
    start(first, batch_size=64)
    first.close(timeout_s=20)
    second = make_tracker()
    start(second, batch_size=32)
    second.trial_finished(record=make_record())
    assert second.close(timeout_s=20) == ()
    assert runs_of(client, second)["t0000"].data.params["batch_size"] == "32"


def test_a_halved_micro_batch_stands_beside_the_proposed_one(
    client: Any, make_tracker: Make
) -> None:
    tracker = make_tracker()
    start(tracker, batch_size=64)
    tracker.trial_finished(record=make_record())  # It ran with 32.
    assert tracker.close(timeout_s=20) == ()
    data = runs_of(client, tracker)["t0000"].data
    assert data.params["batch_size"] == "64" and data.params["ran.batch_size"] == "32"


def test_reconcile_delivers_what_is_missing_once(client: Any, make_tracker: Make) -> None:
    records = [make_record(f"t{i:04d}", time_s=1.0 + i) for i in range(3)]
    first = make_tracker()
    first.trial_finished(record=records[0])
    start(first, "t0001", batch_size=64)  # Seen as started only; its record is in the ledger.
    start(first, "t0007")
    leave_running(client, first, "t0001", "t0007")
    before = runs_of(client, first)["t0000"]
    for _ in range(2):
        tracker = make_tracker()
        tracker.reconcile({record.trial_id: record for record in records})
        assert tracker.close(timeout_s=20) == ()
    runs = runs_of(client, first)
    status = {trial_id: run.info.status for trial_id, run in runs.items()}
    assert status == {
        "t0000": "FINISHED",
        "t0001": "FINISHED",
        "t0002": "FINISHED",
        "t0007": "KILLED",
    }
    assert runs["t0000"].info.end_time == before.info.end_time
    assert runs["t0001"].data.params["ran.batch_size"] == "32"
    gone = runs["t0007"].data.tags
    assert gone[schema.STOP_REASON] == "the search's process ended"
    assert gone[NOTE].startswith("**interrupted**: ")
    assert client.get_run(first.run_id).data.metrics["trials"] == 3.0


def test_records_of_one_workload_are_delivered_without_a_search(uri: str) -> None:
    records = [make_record("t0000"), make_record("t0001", Status.MISSED)]
    for _ in range(2):
        assert deliver(Store(uri), records, study="study", search_id="s") == ()
    check_each_once(uri, "study", {"t0000": "FINISHED", "t0001": "FINISHED"})
    (search,) = runs_of_searches(uri, "study")
    assert search.status == "FINISHED" and search.steps("trials") == [2]


def test_reconcile_leaves_a_trial_alone_that_runs_again(client: Any, make_tracker: Make) -> None:
    first = make_tracker()
    start(first)
    leave_running(client, first, "t0000")
    second = make_tracker()
    second.reconcile({})
    start(second)
    second.trial_finished(record=make_record())
    assert second.close(timeout_s=20) == ()
    assert runs_of(client, second)["t0000"].info.status == "FINISHED"


def test_a_run_that_is_there_twice_is_there_once_after_reconcile(
    client: Any, make_tracker: Make
) -> None:
    first = make_tracker()
    first.trial_finished(record=make_record())
    first.close(timeout_s=20)
    complete = runs_of(client, first)["t0000"].info.run_id
    tags = {"mlflow.parentRunId": first.run_id, **schema.start_tags("t0000", kind="estimate")}
    client.create_run(first.experiment_id, tags=tags)
    client.create_run(first.experiment_id, tags=tags, start_time=1)
    second = make_tracker()
    second.reconcile({"t0000": make_record()})
    second.close(timeout_s=20)
    assert runs_of(client, second)["t0000"].info.run_id == complete


def test_two_searches_of_one_study_are_kept_apart(client: Any, make_tracker: Make) -> None:
    first, second = make_tracker(search_id="a"), make_tracker(search_id="b")
    for tracker in (first, second):
        tracker.trial_finished(record=make_record())
        tracker.close(timeout_s=20)
    assert first.experiment_id == second.experiment_id and first.run_id != second.run_id
    runs = client.search_runs([first.experiment_id], f"tags.`{schema.TRIAL_ID}` = 't0000'")
    assert {run.data.tags["mlflow.parentRunId"] for run in runs} == {first.run_id, second.run_id}


def test_an_event_that_cannot_be_read_is_reported_and_the_rest_delivered(
    client: Any, make_tracker: Make, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = make_tracker()
    with caplog.at_level(logging.CRITICAL, logger="tune_speed.tracking"):
        tracker.trial_started(trial_id="t0000", params={}, recipe=None)  # type: ignore[arg-type]
        tracker.trial_finished(record=make_record("t0001"))
        ((trial_id, reason),) = tracker.close(timeout_s=20)
    assert trial_id == "t0000" and "NoneType" in reason
    assert runs_of(client, tracker)["t0001"].info.status == "FINISHED"


def test_a_run_that_the_user_deleted_costs_only_its_own_trial(
    client: Any, make_tracker: Make
) -> None:
    tracker = make_tracker()
    start(tracker)
    wait_for(lambda: runs_of(client, tracker))
    client.delete_run(runs_of(client, tracker)["t0000"].info.run_id)
    tracker.trial_finished(record=make_record("t0000"))
    tracker.trial_finished(record=make_record("t0001"))
    undelivered = tracker.close(timeout_s=20)
    assert [trial.trial_id for trial in undelivered] == ["t0000"]
    assert "deleted" in undelivered[0].reason
    assert set(runs_of(client, tracker)) == {"t0001"}


def test_files_that_cannot_be_stored_are_reported_and_the_rest_delivered(
    client: Any, make_tracker: Make, tmp_path: Path
) -> None:
    (tmp_path / "mlartifacts").touch()  # A file where the folder should be.
    tracker = make_tracker()
    tracker.trial_finished(record=make_record())
    ((trial_id, reason),) = tracker.close(timeout_s=20)
    assert trial_id == "t0000" and "files could not be stored" in reason
    run = runs_of(client, tracker)["t0000"]
    assert run.info.status == "FINISHED" and schema.unpack_record(run.data.tags) is not None


def test_a_store_that_does_not_answer_blocks_nobody(
    client: Any, make_tracker: Make, tmp_path: Path
) -> None:
    tracker = make_tracker()
    took_s = []
    with locked(tmp_path):
        start(tracker)
        for i in range(500):
            evaluation = make_evaluation(step=i)
            start_s = time.perf_counter()
            tracker.trial_evaluated(trial_id="t0000", evaluation=evaluation)
            took_s.append(time.perf_counter() - start_s)
        tracker.trial_finished(record=make_record())
        start_s = time.monotonic()
        undelivered = tracker.close(timeout_s=0.1)
        assert time.monotonic() - start_s < 2
    assert statistics.median(took_s) < 100e-6
    assert [trial.trial_id for trial in undelivered] == ["t0000"]


def test_what_was_undelivered_is_delivered_by_the_next_reconcile(
    client: Any, make_tracker: Make, tmp_path: Path
) -> None:
    first = make_tracker()
    with locked(tmp_path):
        first.trial_finished(record=make_record())
        assert first.close(timeout_s=0.2)
    first._thread.join(60)  # As the end of its process would do.
    second = make_tracker()
    second.reconcile({"t0000": make_record()})
    assert second.close(timeout_s=60) == ()
    assert runs_of(client, second)["t0000"].info.status == "FINISHED"


def test_delivery_goes_on_after_an_interruption(
    client: Any, make_tracker: Make, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        connection.execute("ALTER TABLE params RENAME TO params_away")
        tracker = make_tracker()
        start(tracker)
        for i in range(3):
            tracker.trial_evaluated(trial_id="t0000", evaluation=make_evaluation(step=i, train_s=i))
        wait_for(lambda: tracker.trouble)
        connection.execute("ALTER TABLE params_away RENAME TO params")
    tracker.trial_finished(record=make_record())
    assert tracker.close(timeout_s=60) == () and tracker.trouble is None
    run = runs_of(client, tracker)["t0000"]
    curve = client.get_metric_history(run.info.run_id, "accuracy")
    assert sorted(m.step for m in curve) == [0, 1, 2, 10]


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_store_that_lost_its_name_has_taken_nothing(
    make_tracker: Make, tmp_path: Path, is_replaced: bool
) -> None:
    path, records = tmp_path / "mlflow.db", {"t0000": make_record()}
    older = path.read_bytes()
    tracker = make_tracker()
    tracker.reconcile(records)
    wait_for(lambda: not tracker.expected)
    path.unlink()
    if is_replaced:
        path.write_bytes(older)
    missing = tracker.close(timeout_s=1)
    assert [each.trial_id for each in missing] == ["t0000"]
    assert isinstance(tracker.trouble, str) and str(path) in tracker.trouble


def test_secrets_stay_out_of_everything(
    client: Any, make_tracker: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
    record = make_record(params={"root": "s3://me:hunter2@bucket"})
    run = make_run().model_copy(
        update={"stop_reason": StopReason.model_validate("login hunter2 refused")}
    )
    record = record.model_copy(update={"runs": (run,), "environment": {"API_KEY": "hunter2"}})
    tracker = make_tracker(study_tags={"store": "http://me:hunter2@host"})
    tracker.trial_started(trial_id="t0000", params=record.params, recipe=record.recipe)
    tracker.trial_finished(record=record)
    tracker.close(timeout_s=20)
    check(tmp_path / "mlflow.db", writing=True)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert not [path for path in files if b"hunter2" in path.read_bytes()]


def test_closing_twice_and_events_after_it_do_no_harm(
    client: Any, make_tracker: Make, tmp_path: Path
) -> None:
    tracker = make_tracker()
    tracker.trial_finished(record=make_record())
    assert tracker.close(timeout_s=20) == tracker.close(timeout_s=1) == ()
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        statistics_of = connection.execute("SELECT count(*) FROM sqlite_stat1")
        assert statistics_of.fetchone()[0] > 0, "the planner's"
    tracker.trial_evaluated(trial_id="t0000", evaluation=make_evaluation())
    tracker.trial_interrupted(trial_id="t0009", reason="late")
    assert set(runs_of(client, tracker)) == {"t0000"}


def test_a_store_that_cannot_take_the_study_is_refused_at_once(
    client: Any, make_tracker: Make, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        connection.execute("ALTER TABLE experiments RENAME TO away")
    with pytest.raises((StorageError, ServiceError), match=r"mlflow\.db"):
        make_tracker()


def test_undelivered_trials_are_named_and_many_cut_short() -> None:
    def named(number: int) -> str:
        return names_of([Undelivered(f"t{i:04d}", "gone") for i in range(number)])

    assert named(1) == "1 trial, t0000"
    assert named(2) == "2 trials, t0000 and t0001"
    assert named(3) == "3 trials, t0000, t0001 and t0002"
    assert named(500).startswith("500 trials, t0000, ") and named(500).endswith("t0019 and more")


# --- Times that are others at the end of a search


def with_time(record: TrialRecord, time_s: float, step_s: float) -> TrialRecord:
    """Returns the record as if its run's steps took `step_s`, and all of it `time_s`."""
    step_time = StepTime(
        key="k", step_s=step_s, low_s=step_s, high_s=step_s, num_steps=9, measured_in="s/t0000"
    )
    run = make_run(record.status, time_s=time_s)
    run = run.model_copy(update={"step_times": (step_time,), "timing": Timing.ISOLATED})
    return record.model_copy(update={"runs": (run,)})


def test_reclocked_trials_show_their_new_times_and_their_curve_once(
    client: Any, make_tracker: Make
) -> None:
    records = {name: with_time(make_record(name), 2.0, 0.2) for name in ("t0000", "t0001")}
    missed = with_time(make_record("t0002", Status.MISSED), 2.0, 0.2)
    records["t0002"] = missed
    tracker = make_tracker()
    tracker.reconcile(records)
    wait_for(lambda: not tracker.expected)
    before = runs_of(client, tracker)
    # Quicker, so that MLflow's latest figure of the step would be the old one by its moment.
    changed = [with_time(records[name], 1.0, 0.1) for name in ("t0000", "t0002")]
    records |= {record.trial_id: record for record in changed}
    tracker.trials_reclocked([record.trial_id for record in changed])
    assert tracker.close(timeout_s=30) == ()
    after = runs_of(client, tracker)
    quick = after["t0000"].data
    assert quick.metrics["time_to_target_s"] == 1.0
    assert quick.metrics[schema.EXPECTED] == 1.0
    told = schema.unpack_record(quick.tags)
    assert told is not None and told.time_to_target_s == 1.0
    moved_ms = after["t0000"].info.end_time - before["t0000"].info.end_time
    assert moved_ms == 1, "it ended when it did, but for what shows an index that it was changed"
    assert len(client.get_metric_history(after["t0000"].info.run_id, "accuracy")) == 1
    assert after["t0001"].data.metrics == before["t0001"].data.metrics
    assert after["t0002"].data.metrics["train_s"] == 1.0, "what missed has a training time too"
    search = client.get_run(tracker.run_id)
    assert search.data.metrics["best_time_to_target_s"] == 1.0


def test_a_search_that_was_killed_before_it_told_new_times_tells_them_when_it_is_resumed(
    client: Any, make_tracker: Make
) -> None:
    old = with_time(make_record(), 2.0, 0.2)
    first = make_tracker()
    first.reconcile({"t0000": old})
    first.close(timeout_s=30)
    again = make_tracker()
    again.reconcile({"t0000": with_time(old, 1.0, 0.1)})
    assert again.close(timeout_s=30) == ()
    assert runs_of(client, again)["t0000"].data.metrics["time_to_target_s"] == 1.0
