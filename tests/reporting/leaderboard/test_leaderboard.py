import random

import pytest
from helpers.making import make_record, make_run
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.core.comparability import Totals, board_key
from tune_speed.core.records import Status, StepTime, Timing, TrialRecord
from tune_speed.reporting.leaderboard.ranking import make_boards


def measured(trial_id: str, *, steps: int, half_width: float = 0.0) -> TrialRecord:
    """Returns an estimate of `steps` steps of 1 s, which may be off by `half_width`."""
    step_time = StepTime(
        key=trial_id,
        step_s=1.0,
        low_s=1 - half_width,
        high_s=1 + half_width,
        num_steps=9,
        measured_in=f"study/{trial_id}",
    )
    own = {"timing": Timing.ISOLATED, "step_times": (step_time,)}
    return make_record(trial_id, runs=(make_run(time_s=steps).model_copy(update=own),))


def test_rows_are_ranked_by_time_to_target() -> None:
    times = {"t0000": 3.0, "t0001": 1.0, "t0002": 2.0}
    board = make_boards((None, make_record(i, time_s=t)) for i, t in times.items())[0]
    assert [(row.rank, row.trial_id) for row in board.rows] == [
        (1, "t0001"),
        (2, "t0002"),
        (3, "t0000"),
    ]


@pytest.mark.parametrize(
    "other",
    [{"device": "NVIDIA H200"}, {"workload_hash": "x" * 16}, {"kind": "certified"}],
)
def test_rows_of_other_devices_workloads_and_kinds_are_never_ranked_together(
    other: dict[str, str],
) -> None:
    boards = make_boards([(None, make_record()), (None, make_record(**other))])
    assert [len(board.rows) for board in boards] == [1, 1]
    assert [board.rows[0].rank for board in boards] == [1, 1]


def test_miss_has_no_rank_and_no_time() -> None:
    trials = [(None, make_record("t0000", Status.MISSED)), (None, make_record("t0001"))]
    assert [row.trial_id for row in make_boards(trials)[0].rows] == ["t0001"]
    (board,) = make_boards([*trials, (None, make_record("t2", Status.MISSED))], with_misses=True)
    assert [(row.rank, row.tied, row.place) for row in board.rows[1:]] == [(None, False, "–")] * 2
    assert (board.rows[1].time_to_target_s, board.trials, board.tuning_cost_s) == (None, 3, 3.0)
    mostly = (make_run(time_s=1.0), make_run(Status.MISSED), make_run(Status.MISSED))
    assert make_boards([(None, make_record(runs=mostly))])[0].rows == ()
    assert make_boards([]) == []


def test_time_of_several_seeds_is_the_median_with_misses_as_infinite() -> None:
    runs = (make_run(time_s=1.0), make_run(time_s=4.0), make_run(Status.MISSED))
    row = make_boards([(None, make_record(runs=runs))])[0].rows[0]
    assert (row.time_to_target_s, row.hits, row.n) == (4.0, 2, 3)


def test_top_keeps_the_fastest() -> None:
    trials = [(None, make_record(f"t{i:04d}", time_s=float(9 - i))) for i in range(5)]
    assert [row.time_to_target_s for row in make_boards(trials, top=2)[0].rows] == [5.0, 6.0]


def test_overlapping_intervals_share_a_rank_and_the_next_rank_counts_them() -> None:
    """100 ± 3 s and 105 ± 3 s overlap, 110 ± 3 s only the second."""
    steps = {"t0000": 100, "t0001": 105, "t0002": 110}
    trials = [(None, measured(i, steps=n, half_width=0.03)) for i, n in steps.items()]
    rows = make_boards(trials)[0].rows
    assert [(row.rank, row.tied, row.place) for row in rows] == [
        (1, True, "1="),
        (1, True, "1="),
        (3, False, "3"),
    ]


def test_times_without_an_interval_tie_only_where_they_are_equal() -> None:
    times = [1.0, 1.0, 1.0000001]
    trials = [(None, make_record(f"t{i:04d}", time_s=t)) for i, t in enumerate(times)]
    assert [row.place for row in make_boards(trials)[0].rows] == ["1=", "1=", "3"]


def test_equal_times_stand_in_the_order_of_the_final_metric() -> None:
    trials = [
        (None, make_record(f"t{i:04d}", runs=(make_run(accuracy=accuracy),)))
        for i, accuracy in enumerate([0.91, 0.95, 0.93])
    ]
    assert [row.trial_id for row in make_boards(trials)[0].rows] == ["t0001", "t0002", "t0000"]


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0.0, 0.5)), min_size=1, max_size=12))
def test_no_row_shares_a_rank_with_a_leader_that_is_clearly_faster(
    trials: list[tuple[int, float]],
) -> None:
    records = [measured(f"t{i:04d}", steps=n, half_width=w) for i, (n, w) in enumerate(trials)]
    rows = make_boards((None, record) for record in records)[0].rows
    for row in rows:
        assert row.rank is not None
        leader = rows[row.rank - 1]
        assert leader.rank == row.rank
        assert row.expected_low_s <= leader.expected_high_s


@given(st.randoms(use_true_random=False))
def test_the_order_of_the_records_does_not_matter(chance: random.Random) -> None:
    trials = [(None, make_record(f"t{i:04d}", time_s=1.0 + i % 3)) for i in range(9)]
    boards = make_boards(trials)
    chance.shuffle(trials)
    assert make_boards(trials) == boards


def test_each_row_has_the_cost_of_its_own_studys_search() -> None:
    """A trial of one second holds the device for two."""
    trials = [(None, make_record("t0000", study="long"))]
    trials += [(None, make_record(f"t{i:04d}", Status.MISSED, study="long")) for i in range(1, 5)]
    trials += [(None, make_record("t0000", study="short", time_s=2.0))]
    board = make_boards(trials)[0]
    costs = {row.study: (row.study_trials, row.study_device_s) for row in board.rows}
    assert costs == {"long": (5, 10.0), "short": (1, 4.0)}
    assert (board.trials, board.reached, board.device_s) == (6, 2, 14.0)


def test_a_certified_row_has_the_cost_of_the_search_that_found_it() -> None:
    certified = make_record(kind="certified")
    trials = [(None, make_record(f"t{i:04d}")) for i in range(3)]
    assert make_boards([(None, certified), *trials])[0].rows[0].study_trials == 3
    assert make_boards([(None, certified)])[0].rows[0].study_trials is None
    provenance = {"tuning_trials": 60, "tuning_device_s": 49.0}
    told = certified.model_copy(update={"certificate": {"provenance": provenance}})
    row = make_boards([(None, told), *trials])[0].rows[0]
    assert (row.study_trials, row.study_device_s) == (60, 49.0)


def test_totals_that_are_given_stand_for_trials_that_are_not() -> None:
    record = make_record()
    whole = Totals(trials=500, reached=40, tuning_cost_s=900.0, device_s=1000.0)
    of_study = {(board_key(record), "study"): Totals(trials=7, device_s=8.0)}
    board = make_boards([(None, record)], totals={board_key(record): whole}, study_totals=of_study)[
        0
    ]
    shown = (board.trials, board.reached, board.tuning_cost_s, board.device_s)
    assert shown == (500, 40, 900.0, 1000.0)
    assert (board.rows[0].study_trials, board.rows[0].study_device_s) == (7, 8.0)


def test_a_part_of_the_trials_does_not_tell_what_a_study_cost() -> None:
    board = make_boards([(None, make_record())], where="optimizer=sgd")[0]
    assert (board.where, board.trials, board.rows[0].study_trials) == ("optimizer=sgd", 1, None)


def test_one_row_more_tells_whether_the_last_shown_is_tied() -> None:
    trials = [(None, make_record(f"t{i:04d}")) for i in range(3)]
    assert [row.place for row in make_boards(trials[:2], top=1)[0].rows] == ["1="]
