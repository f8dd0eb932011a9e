import random
from typing import Any

import pytest
from helpers.making import make_record, make_run
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.core.records import Status, TrialRecord
from tune_speed.reporting.leaderboard.history import boards_of, record_history

TIMES = st.lists(st.integers(1, 9), max_size=12)


def finished(minute: int, time_s: float, **fields: Any) -> TrialRecord:
    """Returns a trial that finished at this minute."""
    at = f"2026-01-01T00:{minute:02d}:00.000+00:00"
    record = make_record(f"t{minute:04d}", time_s=time_s, **fields)
    return record.model_copy(update={"finished_at": at})


def test_only_what_was_the_fastest_when_it_finished_is_a_record() -> None:
    history = record_history(finished(i, t) for i, t in enumerate([5.0, 7.0, 4.0, 4.0, 2.0]))
    assert [(held.trial_id, held.expected_s) for held in history] == [
        ("t0000", 5.0),
        ("t0002", 4.0),
        ("t0004", 2.0),
    ]


def test_an_overlapping_record_is_not_clear() -> None:
    spread = [tuple(make_run(time_s=base + i, seed=i) for i in range(5)) for base in (8.0, 7.5)]
    _, second = record_history(finished(i, 1.0, runs=runs) for i, runs in enumerate(spread))
    assert second.is_clear is False
    assert second.interval_of == "seeds"


@given(TIMES, st.randoms(use_true_random=False))
def test_records_are_the_running_minimum_whatever_order_they_come_in(
    times_s: list[int], chance: random.Random
) -> None:
    records = [finished(i, float(time_s)) for i, time_s in enumerate(times_s)]
    chance.shuffle(records)
    minima = [t for i, t in enumerate(times_s) if t < min(times_s[:i], default=99)]
    assert [held.expected_s for held in record_history(records)] == minima


@pytest.mark.parametrize(
    "other", [{"device": "NVIDIA H200"}, {"workload_hash": "x" * 16}, {"kind": "certified"}]
)
def test_each_board_has_records_of_its_own(other: dict[str, Any]) -> None:
    history = record_history([finished(0, 1.0), finished(1, 5.0, **other)])
    assert [len(board) for board in boards_of(history)] == [1, 1]
    assert all(held.held_until is None and held.gained_s is None for held in history)


def test_of_several_that_finish_together_the_fastest_is_the_record() -> None:
    both = [finished(3, 5.0), finished(3, 4.0, study="other")]
    assert [held.study for held in record_history(both)] == ["other"]


def test_misses_and_trials_without_an_end_set_no_record() -> None:
    unknown = finished(1, 1.0).model_copy(update={"finished_at": ""})
    mostly = (make_run(time_s=1.0), make_run(Status.MISSED), make_run(Status.MISSED))
    missed = [finished(2, 1.0, status=Status.MISSED), finished(3, 1.0, runs=mostly)]
    assert record_history([unknown, *missed]) == ()


def test_a_certified_trial_that_strangers_disturbed_sets_no_record() -> None:
    runs = (make_run(time_s=1.0), make_run(time_s=1.0).model_copy(update={"timing": "disturbed"}))
    fast, slow = finished(1, 1.0, runs=runs, kind="certified"), finished(2, 2.0, kind="certified")
    assert [held.expected_s for held in record_history([fast, slow])] == [2.0]
    assert len(record_history([fast.model_copy(update={"kind": "estimate"})])) == 1


def test_a_record_is_held_until_the_next_which_says_by_how_much_it_beat_it() -> None:
    first, second = record_history([finished(0, 5.0), finished(9, 4.0)])
    assert (first.gained_s, first.speedup, first.is_clear) == (None, None, None)
    assert (second.gained_s, second.speedup, second.is_clear) == (1.0, 1.25, True)
    assert first.held_until == second.held_from == "2026-01-01T00:09:00.000+00:00"
    assert second.held_until is None
