import pytest
from making import make_record, make_run

from tune_speed.leaderboard import make_boards
from tune_speed.records import Status


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
    with_misses = make_boards(trials, with_misses=True)[0].rows
    assert (with_misses[1].rank, with_misses[1].time_to_target_s) == (None, None)


def test_board_counts_the_cost_of_misses() -> None:
    trials = [(None, make_record("t0000", Status.MISSED, time_s=5.0)), (None, make_record("t0001"))]
    board = make_boards(trials)[0]
    assert (board.trials, board.tuning_cost_s) == (2, 6.0)


def test_time_of_several_seeds_is_the_median_with_misses_as_infinite() -> None:
    runs = (make_run(time_s=1.0), make_run(time_s=4.0), make_run(Status.MISSED))
    row = make_boards([(None, make_record(runs=runs))])[0].rows[0]
    assert (row.time_to_target_s, row.hits, row.n) == (4.0, 2, 3)


def test_mostly_missed_configuration_has_no_rank() -> None:
    runs = (make_run(time_s=1.0), make_run(Status.MISSED), make_run(Status.MISSED))
    assert make_boards([(None, make_record(runs=runs))])[0].rows == ()


def test_top_keeps_the_fastest() -> None:
    trials = [(None, make_record(f"t{i:04d}", time_s=float(9 - i))) for i in range(5)]
    assert [row.time_to_target_s for row in make_boards(trials, top=2)[0].rows] == [5.0, 6.0]


def test_no_records_make_no_boards() -> None:
    assert make_boards([]) == []
