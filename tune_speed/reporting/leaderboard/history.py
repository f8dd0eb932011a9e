"""Who held the record when: each trial that was the fastest of its board as it finished."""

from collections.abc import Iterable
from datetime import datetime
from itertools import groupby
from typing import Any

from tune_speed.core.comparability import BoardKey, board_key, target_of
from tune_speed.core.config import Config
from tune_speed.core.moments import moment_of
from tune_speed.core.records import TrialRecord
from tune_speed.core.stats import finite_or_none, median_time_s
from tune_speed.reporting.leaderboard.ranking_folded import timed


class RecordHeld(Config):
    """A trial that was faster than all that its board had before."""

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
    """`estimate` or `certified`; they hold records of their own."""
    held_from: str
    """When the trial finished; UTC, ISO 8601."""
    held_until: str | None
    """When a faster one finished; None: it holds the record still."""
    study: str
    trial_id: str
    expected_s: float
    """Expected time with restarts [s], which for a single run is its time to target."""
    expected_low_s: float | None
    """Lower end of its interval [s], see `Row.interval_of`; None: infinite."""
    expected_high_s: float | None
    """Upper end of it [s]; None: infinite."""
    interval_of: str
    """What the interval is made of: `seeds`, `step time` or `none`."""
    gained_s: float | None
    """Seconds by which it beat the record before; None: it was the first."""
    speedup: float | None
    """Time of the record before / this one's, above 1; None: it was the first."""
    is_clear: bool | None
    """Whether its interval lies below that of the record before; None: it was the first."""
    params: dict[str, Any]
    """What the search chose."""


def record_history(records: Iterable[TrialRecord]) -> tuple[RecordHeld, ...]:
    """Returns the records of each board, board by board, in the order in which they were set.

    A record is set by a trial that has a rank and is strictly faster than all that finished before
    it, by the expected time; an equal one sets none. Of several that finished at the same moment
    the fastest alone does. Trials that do not say when they finished are left out.
    """
    history: list[RecordHeld] = []
    for record in sorted(filter(_counts, records), key=_order):
        before = history[-1] if history and _key(history[-1]) == board_key(record) else None
        held = _held(record, before)
        if before is None or held.expected_s < before.expected_s:
            if before is not None:
                history[-1] = before.model_copy(update={"held_until": held.held_from})
            history.append(held)
    return tuple(history)


def boards_of(history: Iterable[RecordHeld]) -> list[list[RecordHeld]]:
    """Returns the records of each board, in order."""
    return [list(held) for _, held in groupby(history, key=_key)]


def _counts(record: TrialRecord) -> bool:
    times_s = [run.time_to_target_s for run in record.runs]
    if not times_s or moment_of(record.finished_at) is None:
        return False
    return median_time_s(times_s) is not None


def _order(record: TrialRecord) -> tuple[BoardKey, datetime, float, str, str]:
    finished = moment_of(record.finished_at)
    assert finished is not None
    return board_key(record), finished, timed(record).expected_s, record.study, record.trial_id


def _key(held: RecordHeld) -> BoardKey:
    return BoardKey(
        held.workload, held.workload_hash, held.protocol_version, held.device, held.kind
    )


def _held(record: TrialRecord, before: RecordHeld | None) -> RecordHeld:
    time, target = timed(record), target_of(record.workload)
    return RecordHeld(
        **board_key(record)._asdict(),
        metric=target.metric,
        target=target.value,
        target_mode=target.mode,
        mode=record.workload["mode"],
        held_from=record.finished_at,
        held_until=None,
        study=record.study,
        trial_id=record.trial_id,
        expected_s=time.expected_s,
        expected_low_s=finite_or_none(time.low_s),
        expected_high_s=finite_or_none(time.high_s),
        interval_of=time.interval_of,
        gained_s=before.expected_s - time.expected_s if before else None,
        speedup=before.expected_s / time.expected_s if before and time.expected_s else None,
        is_clear=time.high_s < (before.expected_low_s or 0.0) if before else None,
        params=record.params,
    )
