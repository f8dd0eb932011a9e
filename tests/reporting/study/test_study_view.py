from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from helpers.making import make_record
from helpers.reporting.pages import ordinary, trained, viewed
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.core.comparability import fastest
from tune_speed.core.records import PROTOCOL_VERSION, Status
from tune_speed.core.words import StopReason
from tune_speed.reporting.study.view import (
    StudyView,
    ViewedTrial,
    endings_of,
    part_key,
    search_clock_s,
)
from tune_speed.tracking.reader.changes import SearchRun

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12)
"""Starts and lengths [s]."""


def trial(
    number: int = 0, *, start_s: float = 0.0, end_s: float = 9.0, **fields: Any
) -> ViewedTrial:
    moments = {
        "started_at": (EPOCH + timedelta(seconds=start_s)).isoformat(),
        "finished_at": (EPOCH + timedelta(seconds=end_s)).isoformat(),
    }
    protocol = fields.pop("protocol_version", PROTOCOL_VERSION)
    made = make_record(f"t{number:04d}", **fields)
    made = made.model_copy(update={**moments, "protocol_version": protocol})
    return ViewedTrial(record=made, run_id=f"run{number}", url=None, has_curve=False)


def view(*trials: ViewedTrial, certified: tuple[ViewedTrial, ...] = (), **fields: Any) -> StudyView:
    return StudyView(
        study="study",
        uri="sqlite:////mlflow.db",
        url=None,
        ui_command=None,
        read_at=EPOCH.isoformat(),
        searches=fields.get("searches", ()),
        trials=trials,
        certified=certified,
        running=(),
        interrupted=0,
    )


def search(*, is_running: bool) -> SearchRun:
    at = EPOCH.isoformat()
    return SearchRun(run_id="r", started_at=at, updated_at=at, is_running=is_running, tags={})


def test_the_search_clock_stands_while_nothing_runs() -> None:
    night_s = 8 * 3600.0
    trials = [
        trial(0, start_s=0, end_s=10),
        trial(1, start_s=4, end_s=12),  # Beside the first: 2 s more.
        trial(2, start_s=15, end_s=20),  # After a gap of 3 s: 5 s more.
        trial(3, start_s=night_s, end_s=night_s + 7),  # Resumed the next day: 7 s more.
        trial(4, start_s=night_s + 1, end_s=night_s + 2),  # Within the one before.
    ]
    expected = {"run0": 10.0, "run1": 12.0, "run2": 17.0, "run3": 24.0, "run4": 19.0}
    assert search_clock_s(trials) == pytest.approx(expected)


def test_trials_that_follow_one_another_at_once_count_once() -> None:
    trials = [trial(0, start_s=0, end_s=5), trial(1, start_s=5, end_s=5), trial(2, start_s=5)]
    assert search_clock_s(trials) == {"run0": 5.0, "run1": 5.0, "run2": 9.0}


def test_a_study_that_was_begun_anew_has_two_trials_of_one_id() -> None:
    second = ViewedTrial(
        record=trial(0, start_s=100, end_s=101).record, run_id="second", url=None, has_curve=False
    )
    clock = search_clock_s([trial(0, end_s=9), second])
    assert clock == {"run0": 9.0, "second": 10.0}


def test_a_wall_clock_that_was_set_back_takes_no_time_away() -> None:
    trials = [trial(0, end_s=10), trial(1, start_s=20, end_s=12), trial(2, start_s=12, end_s=14)]
    assert search_clock_s(trials) == {"run0": 10.0, "run1": 10.0, "run2": 12.0}


@given(SPANS)
def test_the_search_clock_is_the_length_of_the_union_of_all_spans(
    spans: list[tuple[int, int]],
) -> None:
    trials = [trial(i, start_s=s, end_s=s + long) for i, (s, long) in enumerate(spans)]
    seconds = {second for start, long in spans for second in range(start, start + long)}
    for i, clock_s in enumerate(search_clock_s(trials).values()):
        end = sum(spans[i])
        assert clock_s == sum(second < end for second in seconds)


@pytest.mark.parametrize(
    "other",
    [{"device": "H200"}, {"workload_hash": "x" * 16}, {"protocol_version": 1}],
    ids=lambda other: next(iter(other)),
)
def test_a_part_never_mixes_what_cannot_be_compared(other: dict[str, Any]) -> None:
    whole = view(trial(0), trial(1, **other), trial(2), certified=(trial(3, **other),))
    parts = whole.parts
    assert [[t.run_id for t in part.trials] for part in parts] == [["run0", "run2"], ["run1"]]
    assert [[t.run_id for t in part.certified] for part in parts] == [[], ["run3"]]
    for part in parts:
        assert {part_key(t.record) for t in (*part.trials, *part.certified)} == {part.key}


def test_the_part_with_most_trials_comes_first() -> None:
    whole = view(trial(0, device="a"), trial(1, device="b"), trial(2, device="b"))
    assert [part.key.device for part in whole.parts] == ["b", "a"]


def test_a_part_of_certified_trials_alone_knows_its_workload() -> None:
    (part,) = view(certified=(trial(0, kind="certified"),)).parts
    assert part.workload["target"]["value"] == 0.9 and part.leader is None


def test_a_study_runs_while_one_of_its_searches_does() -> None:
    assert not view().is_running
    assert not view(searches=(search(is_running=False),)).is_running
    both = (search(is_running=True), search(is_running=False))
    assert view(searches=both).is_running


def test_the_leader_is_the_fastest_that_met_the_target_and_of_equals_the_first_by_name() -> None:
    missed = trial(1, status=Status.MISSED, time_s=0.1)
    trials = [trial(0, time_s=2.0), missed, trial(4, time_s=1.0), trial(2, time_s=1.0)]
    (part,) = view(*trials).parts
    assert part.leader is trials[3]
    assert part.leader.record is fastest(each.record for each in trials)
    assert view(missed, trial(2, status=Status.FAILED)).parts[0].leader is None


def test_reasons_that_differ_in_their_figures_are_one() -> None:
    records = [
        trained(f"t{i:04d}", Status.CAPPED, time_s=1.0 + i).model_copy(deep=True) for i in range(3)
    ]
    reasons = [
        "stopped at 0.5 s: 3% likely to meet the target",
        "stopped at 0.7 s: 12% likely to meet it",
    ]
    records = [
        r.model_copy(
            update={
                "runs": (
                    r.runs[0].model_copy(update={"stop_reason": StopReason.model_validate(reason)}),
                )
            }
        )
        for r, reason in zip(records, [*reasons, reasons[0]], strict=True)
    ]
    (ending,) = endings_of(viewed(records).parts[0])
    assert len(ending.trials) == 3
    assert ending.example == reasons[0]
    assert (ending.train_s, ending.share) == (6.0, 1.0)


def test_what_took_most_training_stands_first() -> None:
    endings = [e for e in endings_of(viewed(ordinary()).parts[0]) if e.status != "reached"]
    assert [ending.status for ending in endings] == ["missed", "capped", "failed"]
    # 15 of 3.5 + 15 + 0.25 + 0.1 seconds.
    assert endings[0].share == pytest.approx(15 / 18.85)
