"""Records to ranked rows, only within one workload, protocol, device and kind."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import Field

from tune_speed.core import comparability
from tune_speed.core.config import Config
from tune_speed.core.records import (
    CLOCKED,
    ENDS,
    NOT_CERTIFIED,
    Recommended,
    RunResult,
    Status,
    TrialRecord,
    ended_as,
)
from tune_speed.core.stats import RunStatistics, finite_or_none, mean_interval, wilson_interval
from tune_speed.core.targets import SHARES, Target
from tune_speed.core.text import interval_fields
from tune_speed.tracking.columns import BoardColumns, values_of

SEEDS, STEP_TIME, CHANCE, NONE = "seeds", "step time", "chance", "none"
"""What an interval is made of."""


class Timed(NamedTuple):
    """The expected time of a record [s], infinite without a hit; see `Row.interval_of`."""

    expected_s: float
    low_s: float
    high_s: float
    interval_of: str


class Ranked(Config):
    """Rank of a row on its board."""

    rank: int | None
    """1 is the fastest; None for a configuration that missed the target. Rows whose interval of the
    expected time overlaps that of the first row of their rank share it."""
    tied: bool
    """Whether others share the rank."""


def timed(record: TrialRecord) -> Timed:
    if len(record.runs) == 1:
        return _timed_once(record.runs[0])
    runs = RunStatistics.of(record)
    ends = runs.expected_interval
    return Timed(runs.expected_s, _or_inf(ends.low_s), _or_inf(ends.high_s), SEEDS)


def shared_ranks(intervals: Sequence[tuple[float, float]]) -> list[Ranked]:
    """Returns the place of each row, from intervals [s] in the order of the expected times."""
    firsts: list[int] = []
    for number, (low, _) in enumerate(intervals):
        shares = firsts and low <= intervals[firsts[-1]][1]
        firsts.append(firsts[-1] if shares else number)
    sizes = Counter(firsts)
    return [Ranked(rank=first + 1, tied=sizes[first] > 1) for first in firsts]


def _timed_once(run: RunResult) -> Timed:
    # A run of one shape of step took init + n·s, with s the step time: its interval is init + n·low
    # to init + n·high. How many steps of each shape a run of several took is not recorded; then all
    # of them are taken to be off by as much as the worst, which holds whatever the numbers.
    time_s = run.time_to_target_s
    if time_s is None:
        return Timed(math.inf, math.inf, math.inf, NONE)
    shapes = [shape for shape in run.step_times if shape.step_s > 0]
    if run.timing not in CLOCKED or not shapes:
        return Timed(time_s, time_s, time_s, NONE)
    stepping_s = time_s - run.init_s
    low = min(min(1.0, shape.low_s / shape.step_s) for shape in shapes)
    high = max(max(1.0, shape.high_s / shape.step_s) for shape in shapes)
    # Added to the time itself, so that the ends of an exact clock are the time, bit by bit.
    return Timed(
        time_s, time_s - stepping_s * (1 - low), time_s + stepping_s * (high - 1), STEP_TIME
    )


class Row(BoardColumns, Ranked):
    """One configuration on a leaderboard: the columns of its result, and what ranks it.

    Of a search's runs of one configuration it has the columns of the fastest, and counts all.
    """

    mean_metric: float | None = None
    """Where the best metric within a time is sought: that of another run, as its search expects it,
    or the mean of its runs. Rows are ranked by it then. None: a target is to be met."""
    mean_metric_low: float | None = None
    """Lower end of its 95 % interval; None: a single run."""
    mean_metric_high: float | None = None
    """Upper end of it."""
    chance: float | None = None
    """Probability that another run meets the target, as its search knew it; None: not known."""

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
    expected_cost: float | None = None
    """Expected time times price per hour, in the currency of the prices; None: not known."""
    expected_energy_j: float | None = None
    """Expected time times mean power [J]; None: not known."""
    devices: str
    """On what it ran, which differs between rows of a board by cost alone: `2 x NVIDIA H200`."""
    device_type: str
    """Name of one of these devices."""
    num_devices: int
    """Devices that trained together."""
    scaling: float | None = None
    """Scaling efficiency T₁ / (N·Tₙ) on N devices, where a board has the same on one; else None."""
    interval_of: str
    """What that interval is made of. `seeds`: the spread over several runs. `step time`: how
    exactly the isolated step time of a single run was measured. The spread over seeds is left out
    then: with it, what ties would tie all the more, and what leads might not. `chance`: that of
    `chance`. `none`: a single run on a clock without an interval; only equal times tie."""
    hit_rate_low: float
    """Lower end of the 95 % Wilson interval of the success rate."""
    hit_rate_high: float
    """Upper end of it."""
    params: dict[str, Any]
    """What the search chose."""
    ended: str = ""
    """How its last run ended in a word or two for people (`core.records.ended_as`)."""
    verification: str
    """How far to believe it: `estimate`, a certificate's word, or `NOT_CERTIFIED`."""
    speedup: float | None
    """Of a certified row: the rival's time / this one's; above 1 this one is faster."""
    metric_gain: float | None = None
    """Of a certified row where the best metric within a time is sought: by how much its metric is
    better than the rival's; then `p_value` is of that."""
    rival: str | None
    """With which it was timed together: the leader, or for the leader the best of the others."""
    p_value: float | None
    """One-sided, of being faster than the rival; over several finalists corrected (Holm)."""
    study_trials: int | None
    """Trials of its study's search on this workload, protocol and device, misses included: what it
    took to find it. Of a certified row as its certificate says. None: not known."""
    study_device_s: float | None
    """Seconds for which they held a device (see `Totals.device_s`); None: not known."""
    run_id: str | None
    """MLflow run, for `tune-speed show` and `tune-speed train`."""

    @property
    def name(self) -> str:
        return f"{self.study}/{self.trial_id}"

    @property
    def is_disturbed(self) -> bool:
        return self.verification == NOT_CERTIFIED

    @property
    def place(self) -> str:
        """The rank as people write it: `1`, `1=` where it is shared, `–` without one."""
        return "–" if self.rank is None else f"{self.rank}{'=' if self.tied else ''}"


def make_row(
    record: TrialRecord, *, run_id: str | None, search: comparability.Totals | None
) -> Row:
    """Returns the row of a record without its rank; `search`: what its search's trials come to."""
    values: dict[str, Any] = values_of(record, BoardColumns)
    values |= mean_metric(record.runs, comparability.target_of(record.workload))
    runs, expected = RunStatistics.of(record), timed(record)
    rate, median = runs.success_rate, runs.median_interval
    certificate = record.certificate or {}
    verification, found = (certificate.get(k, {}) for k in ("verification", "provenance"))
    adjusted = verification.get("adjusted_p_value")
    return Row(
        rank=None,
        tied=False,
        **values,
        median_low_s=median.low_s,
        median_high_s=median.high_s,
        **_interval(expected, record),
        devices=str(record.device),
        device_type=str(record.device.one),
        num_devices=record.device.count,
        hit_rate_low=rate.low,
        hit_rate_high=rate.high,
        params=record.params,
        ended=ended_as(record),
        verification=NOT_CERTIFIED
        if record.verdict == NOT_CERTIFIED
        else verification.get("status", record.kind),
        speedup=verification.get("speedup"),
        metric_gain=verification.get("metric_gain"),
        rival=verification.get("incumbent"),
        p_value=verification.get("p_value") if adjusted is None else adjusted,
        study_trials=found.get("tuning_trials", search and search.trials),
        study_device_s=found.get("tuning_device_s", search and search.device_s),
        run_id=run_id,
    )


Trial = tuple[str | None, TrialRecord]
"""A run id (None where there is none) with its record."""


def _by_configuration(trials: Iterable[Trial]) -> list[list[Trial]]:
    found: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for trial in sorted(trials, key=lambda trial: comparability.best_first(trial[1])):
        found[trial[1].study, json.dumps(trial[1].params, sort_keys=True)].append(trial)
    return list(found.values())


def _name(trial: Trial) -> tuple[str, str]:
    return trial[1].study, trial[1].trial_id


def _of_all(row: Row, records: Sequence[TrialRecord], known: Recommended | None) -> Row:
    runs = tuple(run for record in records for run in record.runs if run.status in ENDS)
    if known is None and len(runs) < 2:
        return row
    hits, n = sum(run.status is Status.REACHED for run in runs), len(runs)
    if known is not None:  # More than was read, or less: a search without a model counts none.
        hits, n = max(hits, known.hits), max(n, known.runs)
    chance = None if known is None else known.chance
    if known is not None and chance is not None and chance.value:
        run_s, ends = known.expected_s * chance.value, (chance.high, chance.low)
        low_s, high_s = (run_s / end if end else math.inf for end in ends)
        expected = Timed(known.expected_s, low_s, high_s, CHANCE)
    else:
        expected = timed(records[0].model_copy(update={"runs": runs or records[0].runs}))
    low, high = wilson_interval(hits, n)
    counted: dict[str, Any] = {"hits": hits, "n": n, "hit_rate_low": low, "hit_rate_high": high}
    counted |= {"chance": None if chance is None else chance.value}
    metric = mean_metric(runs, comparability.target_of(records[0].workload), known)
    return row.model_copy(update=counted | metric | _interval(expected, records[0]))


def mean_metric(
    runs: Sequence[RunResult], target: Target, known: Recommended | None = None
) -> dict[str, Any]:
    """Returns the fields of a row about its metric, where the best within a time is sought."""
    found = None if known is None else known.metric
    if found is None and target.seeks_best and (ends := comparability.ends_in_time(runs, target)):
        found = mean_interval(ends, is_share=target.metric in SHARES)
    return {} if found is None else interval_fields("mean_metric", found)


def _interval(expected: Timed, record: TrialRecord) -> dict[str, Any]:
    time_s = finite_or_none(expected.expected_s)
    ends = (expected.expected_s, expected.low_s, expected.high_s)
    names = ("expected_s", "expected_low_s", "expected_high_s")
    return dict(zip(names, map(finite_or_none, ends), strict=True)) | {
        "interval_of": expected.interval_of,
        "expected_cost": record.cost_of(time_s),
        "expected_energy_j": record.energy_of(time_s),
    }


class BoardFacts(Config):
    """What all rows of a board have in common."""

    workload: str
    """Name of the workload."""
    workload_hash: str
    """Hash over the workload and its data."""
    metric: str
    """Metric of the target."""
    target: float
    """Value that it must reach."""
    target_mode: str = "max"
    """Whether more of the metric is better, `max`, or less, `min`."""
    within_s: float | None = None
    """Training time [s] within which the best metric is sought; None: the target, soonest."""
    mode: str
    """Crossing mode: `fixed_length` or `anytime`."""
    protocol_version: int
    """Version of the measuring rules."""
    device: str
    """Name of the device."""
    kind: str
    """`estimate` or `certified`."""

    @property
    def key(self) -> comparability.ComparisonKey:
        """What results must share with these to be ranked among them."""
        return comparability.ComparisonKey(
            *(getattr(self, name) for name in comparability.ComparisonKey._fields)
        )

    @property
    def goal(self) -> str:
        """The target for people: `accuracy ≥ 0.97`."""
        return self._target.words

    @property
    def met(self) -> str:
        return self._target.did_meet

    @property
    def _target(self) -> Target:
        return Target.model_construct(
            metric=self.metric,
            value=self.target,
            mode="min" if self.target_mode == "min" else "max",
            within_s=self.within_s,
        )


def facts_of(record: TrialRecord) -> dict[str, Any]:
    target = comparability.target_of(record.workload)
    return {
        **comparability.board_key(record)._asdict(),
        "metric": target.metric,
        "target": target.value,
        "target_mode": target.mode,
        "within_s": target.within_s,
        "mode": record.workload["mode"],
    }


class Board(BoardFacts):
    """The rows that may be compared with one another, fastest first."""

    order: str = "time"
    """By what its rows are ranked: expected `time`, `cost` or `energy`."""
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
    recommended: Recommended | None = None
    """What a search recommends, by expected time with restarts; None: no search says it."""
    range_ends: dict[str, tuple[str, ...]] = Field(default={})
    """Of estimates: ranges at whose ends the best of their searches lie, in words, by study."""
    rows: tuple[Row, ...]


def make_boards(
    trials: Iterable[Trial],
    *,
    top: int | None = None,
    with_misses: bool = False,
    totals: Mapping[comparability.ComparisonKey, comparability.Totals] | None = None,
    study_totals: Mapping[tuple[comparability.ComparisonKey, str], comparability.Totals]
    | None = None,
    where: str = "",
    favourites: Mapping[comparability.ComparisonKey, Sequence[Recommended]] | None = None,
    range_ends: Mapping[str, tuple[str, ...]] | None = None,
    by_configuration: bool = True,
) -> list[Board]:
    """Returns a leaderboard for each group of comparable records, of `top` rows each.

    A board's first n ranks need its n fastest trials, the next one, which may tie, and what
    searches recommend. `with_misses` keeps unranked rows at the end. `totals` and `study_totals`
    say what all trials come to where `trials`, chosen by `where`, are not all; for the rest see
    `Leaders`.
    """
    groups: dict[comparability.ComparisonKey, list[Trial]] = defaultdict(list)
    for trial in trials:
        groups[comparability.board_key(trial[1])].append(trial)
    if study_totals is None:
        # Neither a part of the trials nor the leaders say what a study cost.
        study_totals = {} if where or totals is not None else _totals_by_study(groups)
    boards = []
    for key, group in sorted(groups.items()):
        of_search = key._replace(kind="estimate")
        best = (favourites or {}).get(key, ())
        known = {(each.study, each.trial_id): each for each in best}
        rows = list[Row]()
        is_search = by_configuration and key.kind != "certified"
        for own in _by_configuration(group) if is_search else [[trial] for trial in group]:
            # Of runs that are equally fast, the one that the search named.
            run_id, record = min(own, key=lambda trial: _name(trial) not in known)
            search = study_totals.get((of_search, record.study))
            row = make_row(record, run_id=run_id, search=search)
            found = known.get(_name((run_id, record)))
            rows.append(_of_all(row, [each for _, each in own], found) if is_search else row)
        records = [record for _, record in group]
        names = set(map(_name, group))
        order_s = comparability.order_of(best)
        ranked = _ranked(rows, order_s, target=comparability.target_of(records[0].workload))
        shown = [r for r in ranked if with_misses or r.rank is not None or r.is_disturbed]
        said = {s: ends for s, ends in (range_ends or {}).items() if ends and is_search}
        sums = (totals or {}).get(key) or comparability.totals_of(records)
        boards.append(
            Board(
                **facts_of(records[0]),
                where=where,
                **sums.model_dump(),
                recommended=next((known[name] for name in known if name in names), None),
                range_ends={row.study: said[row.study] for row in shown if row.study in said},
                rows=tuple(shown[:top]),
            )
        )
    return boards


def with_ranks(rows: Sequence[Row], intervals: Sequence[tuple[float, float]]) -> list[Row]:
    ranks = shared_ranks(intervals)
    return [r.model_copy(update=p.model_dump()) for r, p in zip(rows, ranks, strict=True)]


def _totals_by_study(
    groups: Mapping[comparability.ComparisonKey, Sequence[Trial]],
) -> dict[tuple[comparability.ComparisonKey, str], comparability.Totals]:
    records: dict[tuple[comparability.ComparisonKey, str], list[TrialRecord]] = defaultdict(list)
    for key, trials in groups.items():
        for _, record in trials:
            records[key, record.study].append(record)
    return {place: comparability.totals_of(found) for place, found in records.items()}


def _ranked(
    rows: list[Row], order_s: Mapping[tuple[str, str], float], *, target: Target
) -> list[Row]:
    """Returns the rows by `order_s`, expected time or best metric, those without a rank last."""
    sign = comparability.sign_of(target)

    def order(row: Row) -> comparability.SortKey:
        time_s = row.expected_s if has_rank(row) else None
        if target.seeks_best:
            metric = row.final_metric if row.mean_metric is None else row.mean_metric
            key_s = None if time_s is None else target.within_s
        else:
            key_s, metric = order_s.get((row.study, row.trial_id), time_s), row.final_metric
        goodness = comparability.goodness(metric, target)
        return comparability.sort_key(key_s, goodness, row.study, row.trial_id)

    def interval(row: Row) -> tuple[float, float]:
        if not target.seeks_best:
            return _or_inf(row.expected_low_s), _or_inf(row.expected_high_s)
        known = (row.mean_metric_low, row.mean_metric_high)
        ends = [row.mean_metric if end is None else end for end in known]
        low, high = sorted(-sign * _or_inf(end) for end in ends)
        return low, high

    def has_rank(row: Row) -> bool:
        # The median is None where half of the runs or more missed.
        return row.time_to_target_s is not None and not row.is_disturbed

    ordered = sorted(rows, key=order)
    timed_rows = list(filter(has_rank, ordered))
    ranked = with_ranks(timed_rows, list(map(interval, timed_rows)))
    return [*ranked, *ordered[len(ranked) :]]


def _or_inf(value: float | None) -> float:
    return math.inf if value is None else value
