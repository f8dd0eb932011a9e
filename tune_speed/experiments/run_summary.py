"""Statistics over several runs of one recipe, and the paired test of two: which is faster.

A recipe that meets its target in three of five runs pays for the other two. Trained somewhat longer
its mean exceeds the target by a margin, and most of its runs meet it.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from tune_speed.core import stats
from tune_speed.core.comparability import sign_of, target_of
from tune_speed.core.records import CLOCK_WORDS, Record, RunResult, Status, Timing, TrialRecord
from tune_speed.core.significance import compare
from tune_speed.core.text import (
    INFINITE,
    counted,
    device_text,
    fixed,
    percent,
    seconds,
    significant,
)
from tune_speed.core.words import IN_WORDS, joined
from tune_speed.experiments.certification.elimination import LEAST_PAIRS
from tune_speed.reporting.trials.text import normalisation_lines

SUCCESS_RATE = 0.95
# Fewer say nothing about the spread between seeds.
LEAST_RUNS = 3


def needed_mean(target: float, deviation: float, *, n: int) -> float:
    """Returns the mean metric with which 95 % of further runs meet the target.

    Target + t(n − 1) · √(1 + 1/n) · deviation, Student's quantile at the rate: mean and deviation
    are estimates from n runs. With the normal quantile 86 % of runs after three met it, not 95.

    Source: Hahn and Meeker 1991, Statistical Intervals, section 4.7, prediction of one observation.
    """
    from scipy.special import stdtrit

    return target + float(stdtrit(n - 1, SUCCESS_RATE)) * math.sqrt(1 + 1 / n) * deviation


CONFIDENCE = 0.95
NO_INTERVAL = "no interval from so few runs"
# Runs that failed: their last evaluation is not the end of a training.
NO_FINAL = (Status.FAILED, Status.OOM)
# Runs of the planned length.
WHOLE = (Status.REACHED, Status.MISSED)
# Figures that `RunStatistics` has under the same names.
SAME = (
    *("n", "success_rate", "times_s", "median_s", "median_interval", "mean_hit_s"),
    "expected_interval",
)


class Spread(Record):
    """Mean and spread over runs."""

    mean: float | None
    """None without a value."""
    sd: float | None
    """Sample standard deviation; None with fewer than two values."""
    n: int


class Statistics(Record):
    """Statistics over runs of one recipe. JSON has no infinity: a time of None is infinite."""

    n: int
    k: int
    success_rate: stats.RateInterval
    times_s: tuple[float | None, ...]
    median_s: float | None
    """Median time to target [s], misses as infinite; None: infinite."""
    median_interval: stats.TimeInterval
    """Where the median lies; `confidence` is what so few runs give, 0 for a single one."""
    mean_hit_s: float | None
    """Mean over the runs that met the target [s]; None without one."""
    expected_s: float | None
    """Expected time with restarts, all time spent / hits [s]; None: infinite."""
    expected_interval: stats.TimeInterval
    final_accuracy: Spread
    """Accuracy at the end, over the runs that did not fail, as far as it was measured."""
    metric: str
    target: float
    target_mode: str = "max"
    final_metric: Spread
    margin: float | None
    """How much better the mean of the final metric is than the target: above 0 it holds. None in
    `anytime` mode, which stops at the target, and without a value."""
    needed_margin: float | None
    """Margin with which 95 % of runs meet the target; None with fewer than three runs."""
    timing: dict[Timing, int]
    cotenants: tuple[str, ...]
    notes: tuple[str, ...]


def describe_runs(record: TrialRecord) -> Statistics:
    runs, found = record.runs, stats.RunStatistics.of(record, confidence=CONFIDENCE)
    target = target_of(record.workload)
    ends = [run.final for run in runs if run.final is not None and run.status not in NO_FINAL]
    metrics = [value for end in ends if (value := end.value(target.metric)) is not None]
    final, is_fixed = _spread(metrics), record.workload["mode"] == "fixed_length"
    # For a target of 0 the mean that is needed is the margin itself.
    has_spread = is_fixed and len(metrics) >= LEAST_RUNS
    needed = needed_mean(0.0, final.sd or 0.0, n=final.n) if has_spread else None
    over = sign_of(target) * (final.mean - target.value) if final.mean is not None else None
    return Statistics(
        **{name: getattr(found, name) for name in SAME},
        k=found.hits,
        expected_s=stats.finite_or_none(found.expected_s),
        final_accuracy=_spread([end.accuracy for end in ends if end.accuracy is not None]),
        metric=target.metric,
        target=target.value,
        target_mode=target.mode,
        final_metric=final,
        margin=over if is_fixed else None,
        needed_margin=needed,
        timing=dict(Counter(run.timing for run in runs)),
        cotenants=tuple(sorted({name for run in runs for name in run.cotenants})),
        notes=tuple(dict.fromkeys(joined(run.note) for run in runs if run.note)),
    )


def _spread(values: Sequence[float]) -> Spread:
    mean = statistics.fmean(values) if values else None
    return Spread(mean=mean, sd=stats.deviation(values), n=len(values))


def runs_dict(record: TrialRecord) -> dict[str, Any]:
    found = describe_runs(record).model_dump(mode="json")
    return {**record.model_dump(mode="json", context=IN_WORDS), "statistics": found}


def runs_text(record: TrialRecord, *, name: str = "") -> str:
    """Returns what the runs say, a line each, under the recipe's name."""
    found = describe_runs(record)
    lines = [f"  {label:16} {text}" for label, text in _lines(record, found)]
    head = f"{f'{name}, ' if name else ''}{headline(record)}"
    return "\n".join([head, *lines, *normalisation_lines(record), *_clock(found)])


def _lines(record: TrialRecord, found: Statistics) -> Iterator[tuple[str, str]]:
    rate, misses = found.success_rate, f"  ({INFINITE}: a miss)" if found.k < found.n else ""
    ends = f"{rate.low:.2f} to {rate.high:.2f}"
    interval = f"({percent(rate.confidence)} interval of the rate: {ends})"
    yield "met the target", f"{found.k}/{found.n}  {interval}"
    yield (
        "time to target",
        f"median {seconds(found.median_s)}  ({_interval(found.median_interval)})",
    )
    yield "", f"runs: {', '.join(fixed(t, 3, none=INFINITE) for t in found.times_s)}{misses}"
    if found.mean_hit_s is not None:
        yield "mean of the hits", seconds(found.mean_hit_s)
    expected = f"{seconds(found.expected_s)} expected"
    yield "with restarts", f"{expected}  ({_interval(found.expected_interval)})"
    finals = {"accuracy": found.final_accuracy, found.metric: found.final_metric}
    for name, spread in finals.items():
        if spread.mean is not None:
            sd = "" if spread.sd is None else f" ± {spread.sd:.4f} (sd)"
            yield f"final {name:10}", f"{spread.mean:.6f}{sd}, n = {spread.n}"
    if found.margin is not None:
        needed = found.needed_margin
        rule = "" if needed is None else f"; 95 % of runs meet it with {needed:+.4f}"
        side = "below" if found.target_mode == "min" else "over"
        yield "margin", f"{found.margin:+.4f} {side} the target, on average{rule}"
    speeds = [run.images_per_s for run in record.runs if run.images_per_s is not None]
    if speeds:
        steps = counted(record.runs[-1].steps, "step")
        yield "speed", f"{statistics.median(speeds):.0f} images/s, {steps}"


def headline(record: TrialRecord) -> str:
    place = device_text(record.device)
    return f"{record.workload_name}: {target_of(record.workload).words} on {place}"


def _clock(found: Statistics) -> list[str]:
    lines = [
        f"  clock            {timing}: {text}"
        + (f" ({n} of {counted(found.n, 'run')})" if n < found.n else "")
        for timing, text in CLOCK_WORDS.items()
        if (n := found.timing.get(timing, 0))
    ]
    beside = [f"beside {', '.join(found.cotenants)}"] if found.cotenants else []
    return [*lines, *(f"                   {note}" for note in [*beside, *found.notes])]


def _interval(interval: stats.TimeInterval) -> str:
    if not interval.confidence or not (interval.low_s or interval.high_s):
        return NO_INTERVAL
    low, high = (fixed(end, 3, none=INFINITE) for end in (interval.low_s, interval.high_s))
    return f"{percent(interval.confidence)} interval: {low} to {high} s".replace("∞ s", "∞")


# --- Two recipes

Side = Literal["a", "b"]
# One-sided, of the one that looks faster. Either could, so it is half of 5 %.
MOST_P_VALUE = (1 - CONFIDENCE) / 2
# The signed-rank test's p-value is never below 2^-n: 1/32 with five pairs, 1/64 with six.
LEAST_PAIRS_WITH_MISSES = 6
# Suggested to someone who had fewer than three.
LIKELY_PAIRS = 5
POWER = 0.8
# More runs would take too long to wait for.
MOST_PAIRS = 1000


class Verdict(Record):
    """Which recipe is faster. Factors: time of the slower / time of the faster."""

    faster: Side | None
    """Who looks faster, decided or not; None: neither."""
    is_decided: bool
    """Whether the p-value is below 0.025 and the interval of the factor holds no 1."""
    factor: float | None = None
    """None: infinite, as the slower never met the target; or neither is faster."""
    factor_low: float | None = None
    """Lower end of its interval; None where neither is faster."""
    factor_high: float | None = None
    """Upper end of it; None: infinite, or neither is faster."""
    confidence: float
    p_value: float | None = None
    """One-sided, that the faster one is not faster; None with fewer than three pairs."""
    num_pairs: int
    pairs_needed: int | None = None
    """Pairs that would show this factor with this spread in 80 % of such duels; None: decided,
    over a thousand, or not known."""
    method: str
    statement: str


def judge(a: TrialRecord, b: TrialRecord) -> Verdict:
    pairs = common_seeds(a, b)
    assert pairs
    ours, theirs = ([stats.sample_of(run) for run in runs] for runs in zip(*pairs, strict=True))
    found = compare(ours, theirs, confidence=CONFIDENCE, miss_s=a.miss_s)
    side: Side = "a"
    if found.ratio is not None and found.ratio > 1:
        # Again the other way round, as the p-value is one-sided.
        found = compare(theirs, ours, confidence=CONFIDENCE, miss_s=a.miss_s)
        side = "b"
        ours, theirs = theirs, ours
    known = {"confidence": CONFIDENCE, "num_pairs": len(pairs), "method": found.method}
    if found.ratio is None or found.ratio == 1:
        neither = "no run of either met the target" if found.ratio is None else "both took as long"
        statement = f"Not decided: {neither}, in {counted(len(pairs), 'pair')} of runs."
        return Verdict(faster=None, is_decided=False, statement=statement, **known)
    factor, low, high = (
        math.inf if end == 0 else 1 / end for end in (found.ratio, found.high, found.low)
    )
    is_enough = len(pairs) >= LEAST_PAIRS
    is_decided = is_enough and found.p_value < MOST_P_VALUE and low > 1
    verdict = Verdict(
        faster=side,
        is_decided=is_decided,
        factor=stats.finite_or_none(factor),
        factor_low=low,
        factor_high=stats.finite_or_none(high),
        p_value=found.p_value if is_enough else None,
        pairs_needed=None if is_decided else pairs_needed(ours, theirs),
        statement="",
        **known,
    )
    has_miss = not all(sample.is_hit for sample in [*ours, *theirs])
    return verdict.model_copy(update={"statement": _statement(verdict, has_miss=has_miss)})


def common_seeds(a: TrialRecord, b: TrialRecord) -> list[tuple[RunResult, RunResult]]:
    by_seed = {run.seed: run for run in b.runs}
    return [(run, by_seed[run.seed]) for run in a.runs if run.seed in by_seed]


def pairs_needed(faster: Sequence[stats.Sample], slower: Sequence[stats.Sample]) -> int | None:
    """Returns the pairs with which this difference of log times would show in most duels.

    By Student's t, 80 % power at a one-sided 2.5 %, in the usual approximation: the difference
    must exceed the sum of both quantiles in standard errors. None where a run missed, with fewer
    than three pairs, or if it is over a thousand.

    Source: Cohen 1988, Statistical Power Analysis, chapter 12, with t for the normal quantiles.
    """
    if len(faster) < LEAST_PAIRS or not all(sample.is_hit for sample in [*faster, *slower]):
        return None
    from scipy.special import stdtrit

    pairs = zip(faster, slower, strict=True)
    logs = [math.log(theirs.spent_s / ours.spent_s) for ours, theirs in pairs]
    mean, deviation = statistics.fmean(logs), statistics.stdev(logs)

    def shows(n: int) -> bool:
        quantiles = stdtrit(n - 1, 1 - MOST_P_VALUE) + stdtrit(n - 1, POWER)
        return bool(quantiles * deviation / math.sqrt(n) <= mean)

    # The pairs that there were did not decide, so that it takes one more at least.
    return next((n for n in range(len(logs) + 1, MOST_PAIRS + 1) if shows(n)), None)


def _statement(verdict: Verdict, *, has_miss: bool) -> str:
    winner, loser = ("A", "B") if verdict.faster == "a" else ("B", "A")
    ends = f"{verdict.factor_low:.3g} to {significant(verdict.factor_high, 3, none=INFINITE)}"
    has_ends = verdict.factor_low or verdict.factor_high is not None
    figures = [
        f"{percent(verdict.confidence)} interval: {ends}" if has_ends else NO_INTERVAL,
        *([] if verdict.p_value is None else [f"one-sided p = {verdict.p_value:.2g}"]),
        f"{counted(verdict.num_pairs, 'pair')} of runs",
    ]
    much = (
        f"infinitely faster than {loser}, which never met the target,"
        if verdict.factor is None
        else f"{verdict.factor:.3g} times as fast as {loser}"
    )
    said = f"{much} ({'; '.join(figures)})."
    if verdict.is_decided:
        return f"{winner} is {said}"
    return f"Not decided: {winner} looks {said} {_remedy(verdict, has_miss=has_miss)}"


def _remedy(verdict: Verdict, *, has_miss: bool) -> str:
    least = LEAST_PAIRS_WITH_MISSES if has_miss else LEAST_PAIRS
    if verdict.num_pairs < least:
        where = " where runs miss" if has_miss else ""
        return f"It takes {least} pairs at least{where}; try `--seeds {max(least, LIKELY_PAIRS)}`."
    rule = f"As either could have come first, it takes p < {MOST_P_VALUE:.3g}"
    if verdict.pairs_needed is not None:
        return f"{rule}; at this factor and spread, about {counted(verdict.pairs_needed, 'pair')}."
    return f"{rule}; more seeds may decide it."
