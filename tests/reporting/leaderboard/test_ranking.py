import math
from typing import Any

import pytest
from helpers.making import make_record, make_run
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.core.records import RunResult, Status, StepTime, Timing
from tune_speed.reporting.leaderboard.ranking import shared_ranks, timed

ENDS = st.floats(min_value=0.0, max_value=9.0)


@st.composite
def intervals(draw: st.DrawFn) -> list[tuple[float, float]]:
    rows = []
    for time_s in sorted(draw(st.lists(st.integers(1, 20).map(float), max_size=12))):
        low, high = draw(ENDS), draw(ENDS | st.just(math.inf))
        rows.append((max(0.0, time_s - low), time_s + high))
    return rows


def isolated(*shapes: tuple[float, float, float], **changes: Any) -> RunResult:
    """Returns a run of 10 s whose steps of each shape took (median, low, high) seconds."""
    step_times = tuple(
        StepTime(
            key=str(number),
            step_s=shape[0],
            low_s=shape[1],
            high_s=shape[2],
            num_steps=9,
            measured_in="study/t0000",
        )
        for number, shape in enumerate(shapes)
    )
    own = {"timing": Timing.ISOLATED, "step_times": step_times, **changes}
    return make_run(time_s=10.0).model_copy(update=own)


@given(intervals())
def test_ranks_never_fall_in_the_order_of_times(rows: list[tuple[float, float]]) -> None:
    ranks = [place.rank for place in shared_ranks(rows)]
    assert ranks == sorted(ranks)
    # "1224": a rank is 1 + the number of rows before it, of the first row that has it.
    assert all(ranks.index(rank) == rank - 1 for rank in ranks)


@given(intervals())
def test_who_shares_a_rank_overlaps_its_first(rows: list[tuple[float, float]]) -> None:
    for place, (low, high) in zip(shared_ranks(rows), rows, strict=True):
        first_low, first_high = rows[place.rank - 1]
        assert low <= first_high and first_low <= high


@given(intervals())
def test_who_overlaps_the_first_of_the_rank_before_it_shares_it(
    rows: list[tuple[float, float]],
) -> None:
    found = shared_ranks(rows)
    for before, place, (low, _) in zip(found, found[1:], rows[1:], strict=False):
        assert (low <= rows[before.rank - 1][1]) == (place.rank == before.rank)


@given(intervals())
def test_tied_is_who_is_not_alone_with_a_rank(rows: list[tuple[float, float]]) -> None:
    ranks = [place.rank for place in shared_ranks(rows)]
    assert [place.tied for place in shared_ranks(rows)] == [ranks.count(rank) > 1 for rank in ranks]


@given(intervals(), st.integers(0, 12))
def test_ranks_of_the_first_rows_need_no_more_than_these(
    rows: list[tuple[float, float]], top: int
) -> None:
    whole, head = shared_ranks(rows), shared_ranks(rows[: top + 1])
    assert head[:top] == whole[:top]


def test_a_chain_of_neighbours_is_no_tie() -> None:
    """Each overlaps the next, but the third lies clear of the first."""
    assert [(p.rank, p.tied) for p in shared_ranks([(1, 3), (2, 5), (4, 6)])] == [
        (1, True),
        (1, True),
        (3, False),
    ]


def test_a_run_of_one_shape_has_the_interval_of_its_step_time() -> None:
    """8 of the 10 s are steps, of 0.1 s each: 80 steps of 0.09 to 0.15 s, and 2 s beside them."""
    found = timed(make_record(runs=(isolated((0.1, 0.09, 0.15), init_s=2.0),)))
    assert found.expected_s == 10.0
    assert (found.low_s, found.high_s) == pytest.approx((2 + 80 * 0.09, 2 + 80 * 0.15))
    assert found.interval_of == "step time"


@given(st.floats(0.0, 1.0))
def test_several_shapes_have_an_interval_that_holds_for_any_mix(share: float) -> None:
    shapes = ((0.1, 0.09, 0.11), (0.2, 0.19, 0.3))
    found = timed(make_record(runs=(isolated(*shapes),)))
    steps = (10.0 * share / 0.1, 10.0 * (1 - share) / 0.2)
    low, high = (
        sum(n * shape[end] for n, shape in zip(steps, shapes, strict=True)) for end in (1, 2)
    )
    assert found.low_s <= low + 1e-9 and high <= found.high_s + 1e-9


@pytest.mark.parametrize("timing", [Timing.SHARED, Timing.EXCLUSIVE])
def test_a_clock_that_no_step_time_went_into_has_no_interval(timing: Timing) -> None:
    found = timed(make_record(runs=(isolated((0.1, 0.09, 0.11), timing=timing),)))
    assert found == (10.0, 10.0, 10.0, "none")


def test_a_missed_run_takes_for_ever() -> None:
    assert timed(make_record(status=Status.MISSED))[:3] == (math.inf,) * 3


def test_several_runs_have_the_interval_of_their_seeds() -> None:
    runs = tuple(make_run(time_s=1.0 + i / 10, seed=i) for i in range(6))
    found = timed(make_record(runs=runs))
    assert found.expected_s == pytest.approx(1.25)
    assert found.low_s < 1.25 < found.high_s
    assert found.interval_of == "seeds"
