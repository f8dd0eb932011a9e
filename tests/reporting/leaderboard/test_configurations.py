import math

import pytest
from helpers.making import make_record, make_run

from tune_speed.core.comparability import board_key
from tune_speed.core.records import Recommended, Status, TrialRecord
from tune_speed.core.text import Interval
from tune_speed.reporting.leaderboard.ranking import CHANCE, SEEDS, Board, make_boards
from tune_speed.reporting.leaderboard.tables import as_markdown, told
from tune_speed.reporting.trials.comparison import compare_records

SAME = {"lr": 0.5}


def of(number: int, status: Status = Status.REACHED, *, time_s: float = 1.0) -> TrialRecord:
    return make_record(f"t{number:04}", status, time_s=time_s, params=SAME)


def board_of(*records: TrialRecord, favourites: tuple[Recommended, ...] = ()) -> Board:
    trials = [(record.trial_id, record) for record in records]
    best = {board_key(records[0]): favourites}
    (board,) = make_boards(trials, with_misses=True, favourites=best)
    return board


def test_runs_of_a_configuration_are_one_row_with_their_expected_time() -> None:
    runs = [of(0, time_s=3.0), of(1, time_s=2.0), of(2, Status.MISSED, time_s=4.0)]
    stopped = of(3, Status.CAPPED, time_s=0.5)  # That the search stopped it says nothing of it.
    (row,) = board_of(*runs, stopped).rows
    assert (row.trial_id, row.hits, row.n, row.time_to_target_s) == ("t0001", 2, 3, 2.0)
    # All time over hits.
    assert row.expected_s == pytest.approx((3.0 + 2.0 + 4.0) / 2)
    assert row.interval_of == SEEDS
    # Wilson's interval of 2 of 3, as tables have it.
    assert (row.hit_rate_low, row.hit_rate_high) == pytest.approx((0.2077, 0.9385), abs=1e-4)


def test_other_configurations_and_studies_have_rows_of_their_own() -> None:
    other = make_record("t0001", params={"lr": 0.6})
    elsewhere = make_record("t0000", params=SAME, study="other")
    assert [row.n for row in board_of(of(0), other, elsewhere).rows] == [1, 1, 1]


def test_what_never_met_the_target_is_one_row_too() -> None:
    (row,) = board_of(of(0, Status.MISSED), of(1, Status.DIVERGED)).rows
    assert (row.rank, row.hits, row.n, row.expected_s) == (None, 0, 2, None)


def test_a_lucky_run_stands_where_its_search_expects_it() -> None:
    lucky, sure = make_record("t0000", time_s=1.0), make_record("t0001", time_s=2.0)
    own = {"study": "study", "runs": 5, "hits": 4, "chance": Interval(0.8, 0.5, 1.0)}
    best = Recommended(trial_id="t0001", expected_s=3.0, **own)
    own |= {"runs": 1, "hits": 1, "chance": Interval(0.2, 0.0, 0.4)}
    # Its expected time is less, but it mostly misses: its search puts it second.
    next_ = Recommended(trial_id="t0000", expected_s=2.5, **own)
    first, second = board_of(lucky, sure, favourites=(best, next_)).rows
    assert (first.trial_id, first.hits, first.n, first.chance) == ("t0001", 4, 5, 0.8)
    # A run takes 3.0 · 0.8 s.
    assert (first.expected_s, first.interval_of) == (3.0, CHANCE)
    assert (first.expected_low_s, first.expected_high_s) == pytest.approx((2.4, 4.8))
    assert (second.trial_id, second.expected_s, second.time_to_target_s) == ("t0000", 2.5, 1.0)
    assert (second.expected_low_s, second.expected_high_s) == (pytest.approx(1.25), None)
    assert (first.rank, second.rank) == (1, 1)  # Their intervals overlap.


def test_what_no_search_speaks_of_stands_by_its_own_time() -> None:
    best = Recommended(study="study", trial_id="t0001", runs=1, hits=1, chance=0.5, expected_s=4.0)
    records = [make_record(f"t{i:04}", time_s=t) for i, t in enumerate((5.0, 2.0, 3.0))]
    rows = board_of(*records, favourites=(best,)).rows
    assert [(row.trial_id, row.expected_s) for row in rows] == [
        ("t0002", 3.0),
        ("t0001", 4.0),
        ("t0000", 5.0),
    ]


def test_of_equally_fast_runs_the_row_is_that_which_the_search_names() -> None:
    best = Recommended(study="study", trial_id="t0001", runs=2, hits=2, chance=0.9, expected_s=1.5)
    (row,) = board_of(of(0), of(1), favourites=(best,)).rows
    assert (row.trial_id, row.expected_s, row.chance) == ("t0001", 1.5, 0.9)


def test_runs_that_a_search_without_a_model_does_not_count_are_counted() -> None:
    best = Recommended(study="study", trial_id="t0000", runs=1, hits=1, expected_s=1.0)
    (row,) = board_of(of(0), of(1), of(2, Status.MISSED), favourites=(best,)).rows
    assert (row.trial_id, row.hits, row.n) == ("t0000", 2, 3)


def test_recommended_is_what_the_board_has() -> None:
    away = Recommended(study="study", trial_id="t0009", runs=1, hits=1, expected_s=1.0)
    here = away.model_copy(update={"trial_id": "t0001"})
    board = board_of(make_record("t0001"), favourites=(away, here))
    assert board.recommended == here
    assert board_of(make_record("t0001"), favourites=(away,)).recommended is None


def test_certified_rows_and_compared_trials_stand_alone() -> None:
    certified = [make_record(f"c{i}", kind="certified", params=SAME) for i in range(2)]
    assert [row.n for row in board_of(*certified).rows] == [1, 1]
    trials = [(f"{i}" * 32, of(i, time_s=1.0 + i)) for i in range(2)]
    assert len(compare_records(trials).run_ids) == 2


def test_columns_that_say_nothing_are_left_out() -> None:
    names = ("status", "chance", "hits/n", "time_to_target_s", "steps")
    assert told(board_of(make_record("t0000")), names) == ["steps"]
    repeated = board_of(of(0), of(1), make_record("t0002", Status.MISSED))
    assert told(repeated, names) == ["status", "hits/n", "time_to_target_s", "steps"]
    best = Recommended(study="study", trial_id="t0000", runs=1, hits=1, chance=0.5, expected_s=4.0)
    known = board_of(make_record("t0000"), favourites=(best,))
    assert told(known, names) == ["chance", "hits/n", "time_to_target_s", "steps"]
    assert "50%" in as_markdown([known])


def test_certified_recipes_of_which_most_runs_missed_have_no_rank_but_searched_ones_do() -> None:
    """A search's time over its chance ranks whatever was met once; a certificate asks for more."""
    statuses = (Status.REACHED, Status.MISSED, Status.MISSED)
    (row,) = board_of(*(of(i, status) for i, status in enumerate(statuses))).rows
    assert (row.rank, row.hits, row.n) == (1, 1, 3)
    runs = tuple(make_run(status) for status in statuses)
    certified = make_record("c0", kind="certified", runs=runs)
    assert board_of(certified).rows[0].rank is None
    assert math.isfinite(row.expected_s or math.inf)
