"""Records to ranked rows. Rows are compared only within one workload, protocol, device and kind."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from tune_speed.config import Config
from tune_speed.records import Status, TrialRecord
from tune_speed.stats import median_time_s, wilson_interval


class BoardKey(NamedTuple):
    """What two rows must share to be compared."""

    workload: str
    workload_hash: str
    protocol_version: int
    device: str
    kind: str


class Row(Config):
    """One configuration on a leaderboard."""

    rank: int | None
    """1 is the fastest; None for a configuration that missed the target."""
    study: str
    trial_id: str
    time_to_target_s: float | None
    """Median over runs, misses counting as infinite; None if it is infinite."""
    hits: int
    """Runs that met the target."""
    n: int
    """Runs."""
    hit_rate_low: float
    """Lower end of the 95 % Wilson interval of the success rate."""
    hit_rate_high: float
    """Upper end of it."""
    final_metric: float | None
    """The target metric at the end of the last run."""
    status: str
    """How the last run ended."""
    params: dict[str, Any]
    """What the search chose."""
    steps: int
    """Optimizer steps of the last run."""
    images_per_s: float | None
    """Training samples per second of the training clock."""
    peak_memory_gib: float | None
    run_id: str | None
    """MLflow run, for `tune-speed show` and `tune-speed train`."""


class Board(Config):
    """The rows that may be compared with one another, fastest first."""

    workload: str
    workload_hash: str
    metric: str
    target: float
    mode: str
    protocol_version: int
    device: str
    kind: str
    trials: int
    """Trials that were run, misses included."""
    tuning_cost_s: float
    """Training clock of all of them together [s]."""
    rows: tuple[Row, ...]


def make_boards(
    trials: Iterable[tuple[str | None, TrialRecord]],
    *,
    top: int | None = None,
    with_misses: bool = False,
) -> list[Board]:
    """Returns a leaderboard for each group of comparable records.

    Args:
        trials: run ids (None where there is none) with their records.
        top: keep so many rows of each board.
        with_misses: keep configurations that missed the target too, unranked, at the end.
    """
    ordered = sorted(trials, key=lambda trial: _key(trial[1]))
    groups = groupby(ordered, key=lambda trial: _key(trial[1]))
    return [_board(key, list(group), top, with_misses) for key, group in groups]


def _key(record: TrialRecord) -> BoardKey:
    return BoardKey(
        workload=record.workload_name,
        workload_hash=record.workload_hash,
        protocol_version=record.protocol_version,
        device=record.device,
        kind=record.kind,
    )


def _board(
    key: BoardKey,
    trials: Sequence[tuple[str | None, TrialRecord]],
    top: int | None,
    with_misses: bool,
) -> Board:
    workload = trials[0][1].workload
    rows = _ranked([_row(run_id, record) for run_id, record in trials])
    shown = [row for row in rows if with_misses or row.rank is not None]
    return Board(
        **key._asdict(),
        metric=workload["target"]["metric"],
        target=workload["target"]["value"],
        mode=workload["mode"],
        trials=len(trials),
        tuning_cost_s=sum(run.clocks.train_s for _, record in trials for run in record.runs),
        rows=tuple(shown[:top]),
    )


def _ranked(rows: list[Row]) -> list[Row]:
    """Returns the rows by time; a tie goes to the higher final metric, then to the trial id."""

    def order(row: Row) -> tuple[bool, float, float, str, str]:
        missed = row.time_to_target_s is None
        return (
            missed,
            row.time_to_target_s or 0.0,
            -(row.final_metric or 0.0),
            row.study,
            row.trial_id,
        )

    ordered = sorted(rows, key=order)
    return [
        row.model_copy(update={"rank": rank}) if row.time_to_target_s is not None else row
        for rank, row in enumerate(ordered, start=1)
    ]


def _row(run_id: str | None, record: TrialRecord) -> Row:
    hits = sum(run.status == Status.REACHED for run in record.runs)
    n, last = len(record.runs), record.runs[-1]
    low, high = wilson_interval(hits, n)
    return Row(
        rank=None,
        study=record.study,
        trial_id=record.trial_id,
        time_to_target_s=median_time_s([run.time_to_target_s for run in record.runs]),
        hits=hits,
        n=n,
        hit_rate_low=low,
        hit_rate_high=high,
        final_metric=_final_metric(record.workload, record),
        status=record.status.value,
        params=record.params,
        steps=last.steps,
        images_per_s=last.images_per_s,
        peak_memory_gib=last.peak_memory_gib,
        run_id=run_id,
    )


def _final_metric(workload: Mapping[str, Any], record: TrialRecord) -> float | None:
    final = record.runs[-1].final
    if final is None:
        return None
    return final.macro_f1 if workload["target"]["metric"] == "macro_f1" else final.accuracy
