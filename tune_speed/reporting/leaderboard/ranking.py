"""Records to ranked rows. Rows are compared only within one workload, protocol, device and kind.

How rows whose intervals overlap share a rank is defined in `ranking`.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tune_speed.core.comparability import (
    BoardKey,
    Totals,
    board_key,
    goodness,
    target_of,
    totals_of,
)
from tune_speed.core.config import Config
from tune_speed.core.records import TrialRecord
from tune_speed.core.targets import SIGNS, Target
from tune_speed.reporting.leaderboard.board_row import Row, make_row
from tune_speed.reporting.leaderboard.ranking_folded import places

__all__ = ["Board", "Row", "make_boards"]

Trial = tuple[str | None, TrialRecord]
"""A run id (None where there is none) with its record."""


class Board(Config):
    """The rows that may be compared with one another, fastest first."""

    workload: str
    workload_hash: str
    metric: str
    target: float
    target_mode: str = "max"
    """Whether more of the metric is better, `max`, or less, `min`."""
    mode: str
    protocol_version: int
    device: str
    kind: str
    where: str
    """Condition that the trials had to meet to be counted and ranked here; empty: none."""
    trials: int
    """Trials that were run, misses included."""
    reached: int
    """Those that met the target."""
    tuning_cost_s: float
    """Training clock of all of them together [s]."""
    device_s: float
    """Seconds for which they held a device (see `Totals.device_s`)."""
    rows: tuple[Row, ...]

    @property
    def goal(self) -> str:
        """The target for people: `accuracy ≥ 0.97`."""
        return f"{self.metric} {SIGNS[self.target_mode]} {self.target:g}"


def make_boards(
    trials: Iterable[Trial],
    *,
    top: int | None = None,
    with_misses: bool = False,
    totals: Mapping[BoardKey, Totals] | None = None,
    study_totals: Mapping[tuple[BoardKey, str], Totals] | None = None,
    where: str = "",
) -> list[Board]:
    """Returns a leaderboard for each group of comparable records.

    Args:
        trials: what is ranked. A board's first n ranks need no more than its n fastest trials; the
            next one tells whether the last of them is tied.
        top: keep so many rows of each board.
        with_misses: keep configurations that missed the target too, unranked, at the end.
        totals: what the trials of each board come to, where `trials` are not all of them.
        study_totals: the same for each study of a board.
        where: the condition that chose `trials`, where not all were asked for.
    """
    groups: dict[BoardKey, list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[board_key(trial[1])].append(trial)
    if study_totals is None:
        # A part of the trials tells neither what a study cost, nor do its leaders.
        study_totals = {} if where or totals is not None else _totals_by_study(groups)
    return [
        _board(
            key,
            _ranked(_rows(groups[key], study_totals), target=target_of(groups[key][0][1].workload)),
            workload=groups[key][0][1].workload,
            totals=(totals or {}).get(key) or totals_of(record for _, record in groups[key]),
            top=top,
            with_misses=with_misses,
            where=where,
        )
        for key in sorted(groups)
    ]


def _board(
    key: BoardKey,
    rows: Sequence[Row],
    *,
    workload: Mapping[str, Any],
    totals: Totals,
    top: int | None,
    with_misses: bool,
    where: str,
) -> Board:
    target = target_of(workload)
    shown = [row for row in rows if with_misses or row.rank is not None]
    return Board(
        **key._asdict(),
        metric=target.metric,
        target=target.value,
        target_mode=target.mode,
        mode=workload["mode"],
        where=where,
        **totals.model_dump(),
        rows=tuple(shown[:top]),
    )


def _rows(
    trials: Sequence[Trial], study_totals: Mapping[tuple[BoardKey, str], Totals]
) -> list[Row]:
    def search(record: TrialRecord) -> Totals | None:
        return study_totals.get((board_key(record)._replace(kind="estimate"), record.study))

    return [make_row(record, run_id=run_id, search=search(record)) for run_id, record in trials]


def _totals_by_study(
    groups: Mapping[BoardKey, Sequence[Trial]],
) -> dict[tuple[BoardKey, str], Totals]:
    """Returns what the trials of each study on each board come to."""
    records: dict[tuple[BoardKey, str], list[TrialRecord]] = defaultdict(list)
    for key, trials in groups.items():
        for _, record in trials:
            records[key, record.study].append(record)
    return {place: totals_of(found) for place, found in records.items()}


def _ranked(rows: list[Row], *, target: Target) -> list[Row]:
    """Returns the rows by expected time with restarts, which for a single run is its time.

    A recipe that misses in half of its runs or more has no rank and stands at the end. Of equal
    times the better final metric stands first, then the trial id.
    """

    def order(row: Row) -> tuple[bool, float, float, str, str]:
        return (
            row.time_to_target_s is None,
            _or_inf(row.expected_s),
            -goodness(row.final_metric, target),
            row.study,
            row.trial_id,
        )

    ordered = sorted(rows, key=order)
    timed_rows = [row for row in ordered if row.time_to_target_s is not None]
    ranks = places([(_or_inf(r.expected_low_s), _or_inf(r.expected_high_s)) for r in timed_rows])
    ranked = [r.model_copy(update=p._asdict()) for r, p in zip(timed_rows, ranks, strict=True)]
    return [*ranked, *ordered[len(ranked) :]]


def _or_inf(value: float | None) -> float:
    return math.inf if value is None else value
