from collections.abc import Callable
from typing import Any

from helpers.making import make_record

from tune_speed.core.records import StepTime, TrialRecord
from tune_speed.tracking import Store, Tracker
from tune_speed.tracking.reader.queries import find_step_times


def step_time(key: str, step_s: float = 0.1, *, measured_in: str = "study/t0000") -> StepTime:
    return StepTime(
        key=key, step_s=step_s, low_s=step_s, high_s=step_s, num_steps=9, measured_in=measured_in
    )


def record_with(trial_id: str, *step_times: StepTime, started_at: str = "") -> TrialRecord:
    record = make_record(trial_id, study="study")
    run = record.runs[0].model_copy(update={"windows": step_times})
    update: dict[str, Any] = {"runs": (run,)}
    return record.model_copy(update=update | ({"started_at": started_at} if started_at else {}))


def deliver(tracker: Tracker, *records: TrialRecord) -> None:
    for record in records:
        tracker.trial_finished(record=record)
    assert tracker.close(timeout_s=30) == ()


def test_measured_step_times_are_found_by_later_studies(
    make_tracker: Callable[..., Tracker], store: Store
) -> None:
    deliver(
        make_tracker(),
        record_with("t0000", step_time("a")),
        record_with("t0001", step_time("b", 0.2, measured_in="study/t0001")),
        record_with("t0002"),
    )
    found = {each.key: each.step_s for each in find_step_times(store)}
    assert found == {"a": 0.1, "b": 0.2}


def test_a_step_time_counts_where_it_was_measured_only(
    make_tracker: Callable[..., Tracker], store: Store
) -> None:
    deliver(make_tracker(), record_with("t0005", step_time("a", measured_in="study/t0000")))
    assert find_step_times(store) == ()


def test_all_windows_of_a_key_are_found_the_latest_last(
    make_tracker: Callable[..., Tracker], store: Store
) -> None:
    old, new = "2026-01-01T00:00:00.000+00:00", "2026-02-01T00:00:00.000+00:00"
    later = step_time("a", 0.3, measured_in="study/t0001")
    deliver(
        make_tracker(),
        record_with("t0001", later, started_at=new),
        record_with("t0000", step_time("a", 0.1), started_at=old),
    )
    assert [each.step_s for each in find_step_times(store)] == [0.1, 0.3]


def test_an_empty_store_knows_none(store: Store) -> None:
    assert find_step_times(store) == ()
