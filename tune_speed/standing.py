"""What two results must share to be compared, and what a group of such results adds up to."""

from collections.abc import Iterable
from typing import NamedTuple

from tune_speed.config import Config
from tune_speed.records import Status, TrialRecord


class BoardKey(NamedTuple):
    """What two rows must share to be compared."""

    workload: str
    workload_hash: str
    protocol_version: int
    device: str
    kind: str
    """`estimate` or `certified`."""


class Totals(Config):
    """What the trials of one group come to, those that no leaderboard shows among them."""

    trials: int = 0
    """Finished trials, misses included."""
    reached: int = 0
    """Those that met the target."""
    tuning_cost_s: float = 0.0
    """Training clock of all their runs together [s]."""
    device_s: float = 0.0
    """Seconds for which they held a device: wall-clock from first to last line of each run, shared
    by the trials that could run beside one another on the device."""


def board_key(record: TrialRecord) -> BoardKey:
    """Returns what a record must share with another to be compared with it."""
    return BoardKey(
        workload=record.workload_name,
        workload_hash=record.workload_hash,
        protocol_version=record.protocol_version,
        device=record.device,
        kind=record.kind,
    )


def totals_of(records: Iterable[TrialRecord]) -> Totals:
    """Returns what `records` come to."""
    counted = list(records)
    return Totals(
        trials=len(counted),
        reached=sum(record.status is Status.REACHED for record in counted),
        tuning_cost_s=sum(run.clocks.train_s for record in counted for run in record.runs),
        device_s=sum(map(_device_s, counted)),
    )


def sum_of(parts: Iterable[Totals]) -> Totals:
    """Returns what groups of different trials come to together."""
    counted = list(parts)
    return Totals(
        trials=sum(part.trials for part in counted),
        reached=sum(part.reached for part in counted),
        tuning_cost_s=sum(part.tuning_cost_s for part in counted),
        device_s=sum(part.device_s for part in counted),
    )


def fastest(records: Iterable[TrialRecord]) -> TrialRecord | None:
    """Returns the record with the least time to target, or None if none met the target.

    Of equal times, which are frequent where clocks are isolated, the higher final metric wins, and
    then the earlier trial.
    """
    timed = [record for record in records if record.time_to_target_s is not None]
    return min(timed, key=_place, default=None)


def final_metric(record: TrialRecord) -> float | None:
    """Returns the target's metric at the end of the last run; None without an evaluation."""
    final = record.runs[-1].final if record.runs else None
    if final is None:
        return None
    target = record.workload.get("target") or {}
    return final.macro_f1 if target.get("metric") == "macro_f1" else final.accuracy


def _place(record: TrialRecord) -> tuple[float, float, str]:
    return record.time_to_target_s or 0.0, -(final_metric(record) or 0.0), record.trial_id


def _device_s(record: TrialRecord) -> float:
    """Returns the record's wall-clock, divided among those that could share its device."""
    return sum(run.clocks.wall_s for run in record.runs) / (1 + record.max_cotenants)
