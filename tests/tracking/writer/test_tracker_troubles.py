import random
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from helpers.making import make_evaluation, make_record
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

from tune_speed.core.records import Status
from tune_speed.tracking import Tracker, schema
from tune_speed.tracking.writer import descriptions, runs
from tune_speed.tracking.writer import tracker as tracker_module
from tune_speed.tracking.writer.descriptions import NOTE, SearchPlan

Make = Callable[..., Tracker]
GONE = ConnectionError("the store is gone")
REFUSED = MlflowException("value too long", error_code=INVALID_PARAMETER_VALUE)


def fail(error: Exception) -> Callable[..., Any]:
    def raising(*_: Any, **__: Any) -> None:
        raise error

    return raising


@pytest.fixture
def idle(make_tracker: Make) -> Tracker:
    tracker = make_tracker()
    assert tracker.close(timeout_s=20) == ()
    tracker._end.is_written = False
    return tracker


def take(tracker: Tracker) -> None:
    tracker._gather()


def deliver(tracker: Tracker) -> None:
    tracker._gather()
    tracker._deliver(is_last=False)


def test_pause_doubles_up_to_half_a_minute_and_is_short_again_after_a_success(
    idle: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)
    idle.trial_finished(record=make_record())
    take(idle)
    write = idle._runs.write
    for _ in range(2):
        monkeypatch.setattr(idle._runs, "write", fail(GONE))
        pauses = []
        for _ in range(9):
            idle._summary.is_new = True
            idle._deliver(is_last=False)
            pauses.append(idle._link.retry_at - 1000)
        assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
        assert idle.trouble is not None and "gone" in idle.trouble
        monkeypatch.setattr(idle._runs, "write", write)
        idle._deliver(is_last=False)
        assert idle.trouble is None and idle._link.had_trouble


def test_searches_that_lost_one_server_do_not_return_all_at_once(
    idle: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    monkeypatch.setattr(idle._runs, "write", fail(GONE))
    pauses = []
    for _ in range(300):
        idle._link.pause_s, idle._summary.is_new = 8.0, True
        idle._deliver(is_last=False)
        pauses.append(idle._link.retry_at - 1000)
    assert 6.0 <= min(pauses) < 6.2 and 9.8 < max(pauses) <= 10.0


def test_news_are_told_once_when_trouble_comes_changes_or_goes(idle: Tracker) -> None:
    assert idle.news() == ()
    for trouble in ("locked", "full"):
        idle._link.trouble = trouble
        assert idle.news() == (
            f"trials go on, and their results wait in the study's ledger: {trouble}",
        )
        assert idle.news() == ()
    idle._link.trouble = None
    assert idle.news() == ("MLflow answers again, and gets what it has missed",)
    assert idle.news() == ()


def test_trial_that_fails_for_now_is_tried_after_the_others(
    idle: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        idle.trial_finished(record=make_record(f"t{number:04d}"))
    take(idle)
    monkeypatch.setattr(tracker_module, "deliver_outbox", fail(GONE))
    for first in ("t0001", "t0002", "t0000"):
        idle._deliver(is_last=False)
        assert next(iter(idle._outboxes)) == first
    assert idle.expected == {"t0000", "t0001", "t0002"} and idle._refused == {}
    assert [missing.trial_id for missing in idle.close(timeout_s=0)] == ["t0000", "t0001", "t0002"]


def test_trial_that_is_refused_for_good_is_ended_and_named_once(
    client: Any, idle: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
    idle.trial_started(trial_id="t0000", params={}, recipe=make_record().recipe)
    deliver(idle)
    run_id = idle._runs.known()["estimate", "t0000"].run_id
    deliver_it = tracker_module.deliver_outbox
    monkeypatch.setattr(tracker_module, "deliver_outbox", fail(TypeError("no hunter2")))
    idle.trial_finished(record=make_record())
    deliver(idle)
    assert idle._refused == {"t0000": "TypeError: no ***"}
    assert idle.expected == set() and idle._outboxes == {}
    assert client.get_run(run_id).info.status == "KILLED"
    # What is delivered after all is named no more.
    monkeypatch.setattr(tracker_module, "deliver_outbox", deliver_it)
    idle.trial_finished(record=make_record())
    deliver(idle)
    assert idle._refused == {} and client.get_run(run_id).info.status == "FINISHED"


def test_trial_that_goes_on_is_not_ended_though_a_part_was_refused(
    client: Any, idle: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle.trial_started(trial_id="t0000", params={}, recipe=make_record().recipe)
    deliver(idle)
    run_id = idle._runs.known()["estimate", "t0000"].run_id
    monkeypatch.setattr(tracker_module, "deliver_outbox", fail(REFUSED))
    idle.trial_evaluated(trial_id="t0000", evaluation=make_evaluation())
    deliver(idle)
    assert idle._refused == {"t0000": "MlflowException: value too long"}
    assert client.get_run(run_id).info.status == "RUNNING"


def test_second_error_of_a_trial_that_is_given_up_is_told_too(
    idle: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle.trial_started(trial_id="t0000", params={}, recipe=make_record().recipe)
    deliver(idle)
    monkeypatch.setattr(tracker_module, "deliver_outbox", fail(TypeError("one")))
    monkeypatch.setattr(idle._runs, "end", fail(TypeError("two")))
    idle.trial_finished(record=make_record())
    take(idle)
    idle._deliver_trial("t0000")
    assert idle._refused == {"t0000": "TypeError: one; and then TypeError: two"}


def test_own_run_that_is_refused_for_good_costs_nothing_else(
    idle: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle.trial_finished(record=make_record())
    take(idle)
    write = idle._runs.write

    def refuse_parent(ref: Any, **what: Any) -> None:
        if ref is idle._runs.parent:
            raise REFUSED
        write(ref, **what)

    monkeypatch.setattr(idle._runs, "write", refuse_parent)
    idle._deliver(is_last=True)
    assert idle.trouble is None and idle._end.is_written
    assert not idle._summary.is_new
    assert idle.expected == set()


def test_own_run_that_fails_for_now_is_written_again(
    client: Any, idle: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle.trial_finished(record=make_record())
    take(idle)
    with monkeypatch.context() as patch:
        patch.setattr(idle._runs, "write", fail(GONE))
        idle._deliver(is_last=True)
        assert idle.trouble is not None and not idle._end.is_written and idle._summary.is_new
    idle._deliver(is_last=False)
    assert not idle._end.is_written and not idle._summary.is_new
    idle._deliver(is_last=True)
    assert idle._end.is_written
    assert client.get_run(idle.run_id).data.metrics["trials"] == 1.0


@pytest.mark.parametrize("had_trouble", [True, False])
def test_after_trouble_the_end_looks_for_runs_that_are_there_twice(
    client: Any, idle: Tracker, had_trouble: bool
) -> None:
    idle.trial_finished(record=make_record())
    deliver(idle)
    # As a request leaves it whose answer was lost.
    tags = {"mlflow.parentRunId": idle.run_id, **schema.start_tags("t0000", kind="estimate")}
    client.create_run(idle.experiment_id, tags=tags)
    idle._link.had_trouble = had_trouble
    idle._deliver(is_last=True)
    there = client.search_runs([idle.experiment_id], f"tags.`{schema.TRIAL_ID}` = 't0000'")
    assert len(there) == 2 - had_trouble
    assert idle._end.is_written


def test_what_had_no_time_says_so_in_the_order_of_trials(idle: Tracker) -> None:
    for number in (2, 0, 1):
        idle.expected.add(f"t{number:04d}")
    idle._refused["t0003"] = "too long"
    reason = "there was no time left"
    assert idle.close(timeout_s=0) == (
        ("t0000", reason),
        ("t0001", reason),
        ("t0002", reason),
        ("t0003", "too long"),
    )
    idle._link.trouble = "full"
    assert {missing.reason for missing in idle.close(timeout_s=0)} == {"full", "too long"}


@pytest.mark.parametrize("interrupted", [True, False])
def test_search_ends_with_its_own_last_status(
    client: Any, make_tracker: Make, interrupted: bool
) -> None:
    tracker = make_tracker()
    tracker.close(timeout_s=20, interrupted=interrupted)
    status = client.get_run(tracker.run_id).info.status
    assert status == ("KILLED" if interrupted else "FINISHED")


def test_evaluation_of_a_trial_that_is_unknown_or_over_is_dropped(idle: Tracker) -> None:
    idle.trial_evaluated(trial_id="t0009", evaluation=make_evaluation())
    idle.trial_started(trial_id="t0000", params={}, recipe=make_record().recipe)
    idle.trial_evaluated(trial_id="t0000", evaluation=make_evaluation(step=1))
    idle.trial_interrupted(trial_id="t0000", reason="first")
    idle.trial_evaluated(trial_id="t0000", evaluation=make_evaluation(step=2))
    idle.trial_interrupted(trial_id="t0000", reason="second")
    take(idle)
    (outbox,) = idle._outboxes.values()
    assert [evaluation.step for evaluation in outbox.evaluations] == [1]
    assert outbox.interrupted == "first" and outbox.is_new
    assert idle.expected == {"t0000"}


def test_search_describes_itself_and_links_to_its_best_where_that_has_a_run(
    client: Any, idle: Tracker
) -> None:
    assert idle._search_note() == {}
    plan = SearchPlan(study="study", workload=make_record().workload, workload_name="digits")
    idle._plan = plan
    missed = make_record("t0001", Status.MISSED)
    idle.trial_finished(record=missed)
    take(idle)
    note = descriptions.search_note(plan, statuses={Status.MISSED: 1}, best=None, link="")
    assert idle._search_note() == {NOTE: note}
    idle.trial_finished(record=make_record())
    take(idle)
    assert "**t0000**" in idle._search_note()[NOTE]
    idle._deliver(is_last=False)
    run_id = idle._runs.known()["estimate", "t0000"].run_id
    link = f"[t0000](#/experiments/{idle.experiment_id}/runs/{run_id})"
    assert link in idle._search_note()[NOTE] == client.get_run(idle.run_id).data.tags[NOTE]


def test_waits_have_the_figures_that_are_documented() -> None:
    assert tracker_module.FIRST_PAUSE_S == 0.5 and tracker_module.LONGEST_PAUSE_S == 30
    assert tracker_module.LINGER_S == 1 and tracker_module.LONGEST_PAUSE_AT_THE_END_S == 1
    assert runs.OPEN_S == 120 and tracker_module.DELIVERY_S == 60


def test_trial_that_runs_again_is_expected_again_whatever_of_it_was_delivered(
    idle: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle.trial_finished(record=make_record())
    take(idle)
    idle.trial_started(trial_id="t0000", params={}, recipe=make_record().recipe)
    # Delivered after the trial was announced, and before the thread heard of it.
    idle._deliver_trial("t0000")
    assert idle.expected == set()
    take(idle)
    assert idle.expected == {"t0000"}


def test_of_what_waits_for_a_slow_store_only_names_take_memory(
    idle: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = {name: make_record(name) for name in ("t0000", "t0001")}
    records = {name: record.model_copy() for name, record in ledger.items()}
    idle.reconcile(ledger)
    take(idle)
    idle._ledger = None
    for name, record in records.items():
        idle.trial_started(trial_id=name, params=record.params, recipe=record.recipe)
        idle.trial_finished(record=record)
    waiting = [weakref.ref(records.pop(name)) for name in tuple(records)]
    del record
    assert [each() for each in waiting] == [None, None]
    take(idle)
    assert [outbox.params for outbox in idle._outboxes.values()] == [None, None]
    # What happens while one trial is delivered is taken in before the next one is.
    seen = []
    deliver_it = tracker_module.deliver_outbox

    def slow(outbox: Any, runs: Any) -> Any:
        if not seen:
            idle.trial_started(trial_id="t0002", params={}, recipe={})
            idle.trial_interrupted(trial_id="t0002", reason="Ctrl-C")
        seen.append((outbox.key[1], "t0002" in idle._outboxes))
        return deliver_it(outbox, runs)

    monkeypatch.setattr(tracker_module, "deliver_outbox", slow)
    idle._deliver(is_last=False)
    assert seen == [("t0000", False), ("t0001", True)]
    assert idle._outboxes.pop("t0002").interrupted == "Ctrl-C" and idle._refused == {}


def test_twenty_trials_are_named_and_more_are_cut_short() -> None:
    many = [tracker_module.Undelivered(f"t{i}", "gone") for i in range(21)]
    assert tracker_module.names_of(many[:20]).endswith("t18 and t19")
    assert tracker_module.names_of(many).endswith("t18, t19 and more")
