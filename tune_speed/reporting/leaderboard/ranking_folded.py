"""Who shares a rank with whom: intervals of expected times, and ranks from these.

Ranks are those of a competition ("1224"). In the order of expected times T₁ ≤ T₂ ≤ …, with
intervals [Lᵢ, Hᵢ] around them, a group begins with its fastest row g, and each next row i belongs
to it while

    Lᵢ ≤ H_g                                    (its interval overlaps that of the group's first)

The first row that does not begins the next group. All of a group have the rank of its first row,
which is 1 + the number of rows before it.

Rows are compared with the first of their group and not with their neighbours: overlapping is not
transitive, and in a chain of neighbours a row could share the rank of one that is clearly faster.
So no row shares a rank with a leader that it is told apart from. A row of a later group may still
overlap rows of an earlier one; a rank says who leads it, not who is its equal.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tune_speed.core.records import RunResult, Timing, TrialRecord
from tune_speed.core.stats import expected_time_interval_s, expected_time_s, sample_of

SEEDS, STEP_TIME, NONE = "seeds", "step time", "none"
"""What an interval is made of."""


class Timed(NamedTuple):
    """The expected time of a record [s], with its interval; infinite where nothing met the target.

    `interval_of` says what the interval is made of: `seeds`, the spread over several runs;
    `step time`, how exactly the isolated step time of a single run was measured, which leaves out
    the spread over seeds; `none`, a single run on a clock without an interval.
    """

    expected_s: float
    low_s: float
    high_s: float
    interval_of: str


class Place(NamedTuple):
    """Where a row stands."""

    rank: int
    """1 is the fastest."""
    tied: bool
    """Whether others have the same rank."""


def timed(record: TrialRecord) -> Timed:
    """Returns the expected time with restarts of a record, which for a single run is its time."""
    if len(record.runs) == 1:
        return _timed_once(record.runs[0])
    samples = [sample_of(run) for run in record.runs]
    low, high = expected_time_interval_s(samples, miss_s=record.miss_s)
    return Timed(expected_time_s(samples), low, high, SEEDS)


def places(intervals: Sequence[tuple[float, float]]) -> list[Place]:
    """Returns the place of each row, from intervals [s] in the order of the expected times."""
    firsts: list[int] = []
    for number, (low, _) in enumerate(intervals):
        shares = firsts and low <= intervals[firsts[-1]][1]
        firsts.append(firsts[-1] if shares else number)
    sizes = Counter(firsts)
    return [Place(rank=first + 1, tied=sizes[first] > 1) for first in firsts]


def _timed_once(run: RunResult) -> Timed:
    """Returns the time of one run; where its clock is made of step times, with their interval.

    A run of one shape of step took init + n·s, with s the step time: its interval is init + n·low
    to init + n·high. How many steps of each shape a run of several took is not kept; then all of
    them are taken to be off by as much as the worst, which holds whatever the numbers.
    """
    time_s = run.time_to_target_s
    if time_s is None:
        return Timed(math.inf, math.inf, math.inf, NONE)
    shapes = [shape for shape in run.step_times if shape.step_s > 0]
    if run.timing is not Timing.ISOLATED or not shapes:
        return Timed(time_s, time_s, time_s, NONE)
    stepping_s = time_s - run.init_s
    low = min(min(1.0, shape.low_s / shape.step_s) for shape in shapes)
    high = max(max(1.0, shape.high_s / shape.step_s) for shape in shapes)
    # Added to the time itself, so that the ends of an exact clock are the time, bit by bit.
    return Timed(
        time_s, time_s - stepping_s * (1 - low), time_s + stepping_s * (high - 1), STEP_TIME
    )
