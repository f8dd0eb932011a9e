"""What two results must share to be compared, and what a group of such results adds up to."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tune_speed.core.config import Config
from tune_speed.core.records import Recommended, RunResult, Status, TrialRecord
from tune_speed.core.stats import ranked_s
from tune_speed.core.targets import Target

SortKey = tuple[bool | float | str, ...]


class ComparisonKey(NamedTuple):
    """What two results must share to be compared: one leaderboard, one part of a study."""

    workload: str
    workload_hash: str
    protocol_version: int
    device: str
    kind: str = ""
    """`estimate` or `certified`; empty: of both kinds."""


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
    by the trials that could run at the same time on the device."""


def board_key(record: TrialRecord) -> ComparisonKey:
    return ComparisonKey(
        workload=record.workload_name,
        workload_hash=record.workload_hash,
        protocol_version=record.protocol_version,
        device=str(record.device),
        kind=record.kind,
    )


def totals_of(records: Iterable[TrialRecord]) -> Totals:
    counted = list(records)
    return Totals(
        trials=len(counted),
        reached=sum(record.status is Status.REACHED for record in counted),
        tuning_cost_s=sum(run.clocks.train_s for record in counted for run in record.runs),
        # Trials that share a device for an hour hold it for one hour together, not for one each.
        device_s=sum(
            sum(run.clocks.wall_s for run in record.runs) / (1 + record.max_cotenants)
            for record in counted
        ),
    )


def sum_of(parts: Iterable[Totals]) -> Totals:
    counted = list(parts)
    return Totals(**{name: sum(getattr(p, name) for p in counted) for name in Totals.model_fields})


def sort_key(time_s: float | None, goodness: float, *names: str) -> SortKey:
    """Returns the key that sorts results best first, by the ranked time [s] of `stats.ranked_s`.

    Goodness breaks ties, frequent where clocks are made of isolated step times, then names.
    """
    return time_s is None, math.inf if time_s is None else time_s, -goodness, *names


def best_first(record: TrialRecord) -> SortKey:
    return sort_key(ranked_s(record), final_goodness(record), record.study, record.trial_id)


def order_of(favourites: Iterable[Recommended]) -> dict[tuple[str, str], float]:
    """Returns the times [s] by which boards sort recommendations, in each search's own order."""
    longest: dict[str, float] = {}
    order: dict[tuple[str, str], float] = {}
    for each in favourites:
        before = math.nextafter(longest.get(each.study, 0.0), math.inf)
        longest[each.study] = max(each.expected_s, before)
        order[each.study, each.trial_id] = longest[each.study]
    return order


def fastest(records: Iterable[TrialRecord]) -> TrialRecord | None:
    return min((r for r in records if ranked_s(r) is not None), key=best_first, default=None)


def target_of(workload: Mapping[str, Any]) -> Target:
    """Returns a record's target, not validated: it may be anybody's, and old ones lack `mode`."""
    # `model_construct` does not validate: a stranger's record must not stop a leaderboard.
    fields = workload.get("target") or {}
    return Target.model_construct(
        metric=str(fields.get("metric", "accuracy")),
        value=float(fields.get("value", math.nan)),
        mode="min" if fields.get("mode") == "min" else "max",
        within_s=fields.get("within_s"),
    )


def sign_of(target: Target) -> float:
    """Returns 1 where more of the target's metric is better, -1 where less is."""
    return -1.0 if target.mode == "min" else 1.0


def final_metric(record: TrialRecord) -> float | None:
    """Returns the metric at the end of the last run, or the mean of those in time; None: none."""
    target = target_of(record.workload)
    if target.seeks_best and (ends := ends_in_time(record.runs, target)):
        return statistics.fmean(ends)
    final = record.runs[-1].final
    return None if final is None else final.value(target.metric)


def ends_in_time(runs: Iterable[RunResult], target: Target) -> list[float]:
    finals = (run.final for run in runs if run.status is Status.REACHED)
    ends = (None if final is None else final.value(target.metric) for final in finals)
    return [end for end in ends if end is not None]


def best_metric(record: TrialRecord) -> float | None:
    """Returns the best value of the target's metric in any run; None where it was not measured."""
    target = target_of(record.workload)
    seen = [e.value(target.metric) for run in record.runs for e in run.evaluations]
    known = [metric for metric in seen if metric is not None]
    return max(known, key=lambda metric: sign_of(target) * metric, default=None)


def goodness(metric: float | None, target: Target) -> float:
    """Returns a number that is the larger the better the metric; without one, -∞."""
    return -math.inf if metric is None else sign_of(target) * metric


def final_goodness(record: TrialRecord) -> float:
    return goodness(final_metric(record), target_of(record.workload))


def nearest(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Returns the trial that came nearest to its target, whether it met that or not; None: none."""
    measured = [record for record in records if best_metric(record) is not None]
    return max(
        measured, key=lambda r: goodness(best_metric(r), target_of(r.workload)), default=None
    )


def result_text(record: TrialRecord) -> str:
    """Returns what ranks a record, for people: `1.51 s`, `accuracy 0.98`."""
    target, metric = target_of(record.workload), final_metric(record)
    if target.seeks_best and metric is not None:
        return f"{target.metric} {metric:.4f}"
    return f"{record.time_to_target_s:.2f} s"
