"""Paired test of two recipes: which is faster, by what factor, and how certain that is."""

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from tune_speed.core.records import Record, RunResult, TrialRecord
from tune_speed.core.significance import compare
from tune_speed.core.stats import Sample, finite_or_none, sample_of
from tune_speed.core.text import INFINITE, counted, percent, significant
from tune_speed.experiments import run_summary as summary
from tune_speed.experiments.certification.elimination import LEAST_PAIRS

Side = Literal["a", "b"]
# One-sided, of the one that looks faster. Either could, so it is half of 5 %.
MOST_P_VALUE = (1 - summary.CONFIDENCE) / 2
# The signed-rank test's p-value is never below 2^-n: 1/32 with five pairs, 1/64 with six.
LEAST_PAIRS_WITH_MISSES = 6
# Suggested to someone who had fewer than three.
LIKELY_PAIRS = 5
POWER = 0.8
# Beyond this many nobody would wait.
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
    ours, theirs = ([sample_of(run) for run in runs] for runs in zip(*pairs, strict=True))
    found = compare(ours, theirs, confidence=summary.CONFIDENCE, miss_s=a.miss_s)
    side: Side = "a"
    if found.ratio is not None and found.ratio > 1:
        # Again the other way round, as the p-value is one-sided.
        found = compare(theirs, ours, confidence=summary.CONFIDENCE, miss_s=a.miss_s)
        side, ours, theirs = "b", theirs, ours
    known = {"confidence": summary.CONFIDENCE, "num_pairs": len(pairs), "method": found.method}
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
        factor=finite_or_none(factor),
        factor_low=low,
        factor_high=finite_or_none(high),
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


def pairs_needed(faster: Sequence[Sample], slower: Sequence[Sample]) -> int | None:
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
        f"{percent(verdict.confidence)} interval: {ends}" if has_ends else summary.NO_INTERVAL,
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
