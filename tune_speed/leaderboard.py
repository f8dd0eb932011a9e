"""Records to ranked rows. Rows are compared only within one workload, protocol, device and kind."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from tune_speed.certificate import finite_or_none
from tune_speed.config import Config
from tune_speed.contest import sample_of
from tune_speed.records import Status, TrialRecord
from tune_speed.standing import BoardKey, board_key
from tune_speed.stats import (
    expected_time_interval_s,
    expected_time_s,
    median_interval_s,
    median_time_s,
    wilson_interval,
)


class Row(Config):
    """One configuration on a leaderboard."""

    rank: int | None
    """1 is the fastest; None for a configuration that missed the target."""
    study: str
    trial_id: str
    time_to_target_s: float | None
    """Median over runs, misses counting as infinite; None if it is infinite."""
    median_low_s: float | None
    """Lower end of the median's interval [s], of 95 % confidence where there are six runs or more,
    otherwise from the shortest to the longest; None: infinite."""
    median_high_s: float | None
    """Upper end of it [s]; None: infinite."""
    expected_s: float | None
    """Expected time with restarts, all time / hits [s]; None: infinite. Rows are ranked by it."""
    expected_low_s: float | None
    """Lower end of its 95 % interval [s]; None: infinite."""
    expected_high_s: float | None
    """Upper end of it [s]; None: infinite."""
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
    timing: str
    """What the training clocks are made of: `isolated`, `exclusive` or `shared`."""
    slowdown: float | None
    """How much longer the last run took beside its co-tenants; None if it was alone."""
    verification: str
    """How far to believe it: `estimate`, or a certificate's word."""
    speedup: float | None
    """Of a certified row: the rival's time / this one's; above 1 this one is faster."""
    rival: str | None
    """Whom it was timed beside: the leader, or for the leader the best of the others."""
    p_value: float | None
    """One-sided, of being faster than the rival; over several finalists corrected (Holm)."""
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
    ordered = sorted(trials, key=lambda trial: board_key(trial[1]))
    groups = groupby(ordered, key=lambda trial: board_key(trial[1]))
    return [_board(key, list(group), top, with_misses) for key, group in groups]


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
    """Returns the rows by expected time with restarts, which for a single run is its time.

    A recipe that misses in half of its runs or more has no rank. A tie goes to the higher final
    metric, then to the trial id.
    """

    def order(row: Row) -> tuple[bool, float, float, str, str]:
        return (
            row.time_to_target_s is None,
            math.inf if row.expected_s is None else row.expected_s,
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
    verification = (record.certificate or {}).get("verification", {})
    adjusted = verification.get("adjusted_p_value")
    return Row(
        rank=None,
        study=record.study,
        trial_id=record.trial_id,
        time_to_target_s=median_time_s([run.time_to_target_s for run in record.runs]),
        **_times(record),
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
        timing=", ".join(sorted({run.timing.value for run in record.runs})),
        slowdown=last.slowdown,
        verification=verification.get("status", record.kind),
        speedup=verification.get("speedup"),
        rival=verification.get("incumbent"),
        p_value=verification.get("p_value") if adjusted is None else adjusted,
        run_id=run_id,
    )


def _times(record: TrialRecord) -> dict[str, float | None]:
    """Returns intervals of the median and expected times; those of a single run are its time."""
    times = [run.time_to_target_s for run in record.runs]
    samples = [sample_of(run) for run in record.runs]
    if len(times) == 1:
        names = ("median_low_s", "median_high_s", "expected_s", "expected_low_s", "expected_high_s")
        return dict.fromkeys(names, times[0])
    median, expected = (
        median_interval_s(times),
        expected_time_interval_s(samples, miss_s=record.miss_s),
    )
    return {
        "median_low_s": finite_or_none(median.low),
        "median_high_s": finite_or_none(median.high),
        "expected_s": finite_or_none(expected_time_s(samples)),
        "expected_low_s": finite_or_none(expected[0]),
        "expected_high_s": finite_or_none(expected[1]),
    }


def _final_metric(workload: Mapping[str, Any], record: TrialRecord) -> float | None:
    final = record.runs[-1].final
    if final is None:
        return None
    return final.macro_f1 if workload["target"]["metric"] == "macro_f1" else final.accuracy
