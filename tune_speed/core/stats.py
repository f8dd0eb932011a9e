"""How sure a few runs make us."""

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tune_speed.core.records import Record, RunResult

Array = NDArray[np.float64]
NUM_DRAWS = 4096
"""Draws of an interval; each end leaves out about a hundred."""
EQUAL_LOGS = 1e-9
"""Log times that differ by less show no spread: rounding, no clock is as fine."""
LARGEST_LOG = 700.0
"""Its exponential is still a finite number."""


@lru_cache(maxsize=1024)
def wilson_interval(hits: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Returns the Wilson score interval of a success rate of which `hits` of `n` were seen.

    (p + z²/2n ± z √(p (1 - p)/n + z²/4n²)) / (1 + z²/n) with p = hits/n and z the normal quantile.
    Written out because scipy.stats takes longer to import than a leaderboard takes to be read.

    Source: Wilson 1927, Probable inference.
    """
    assert 0 <= hits <= n and n > 0, (hits, n)
    rate, z = hits / n, statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    middle = rate + z * z / (2 * n)
    half = z * math.sqrt(rate * (1 - rate) / n + (z / (2 * n)) ** 2)
    scale = 1 + z * z / n
    low, high = (middle - half) / scale, (middle + half) / scale
    return (low if hits else 0.0), (high if hits < n else 1.0)


def median_time_s(times_s: Sequence[float | None]) -> float | None:
    """Returns the median [s] of times to target in which a miss (None) counts as infinite.

    None where the median itself is infinite: half or more of the runs missed. With an even number
    of runs the two middle ones are averaged, so one infinite middle makes the median infinite.
    """
    median = statistics.median(math.inf if time is None else time for time in times_s)
    return median if math.isfinite(median) else None


class Sample(NamedTuple):
    """One run of a recipe."""

    spent_s: float
    """Training clock until the target held [s]; in a miss, until the run ended."""
    is_hit: bool
    """Whether the target was met."""


class Interval(NamedTuple):
    """An interval, and the confidence that it really has."""

    low: float
    high: float
    confidence: float


def mean_hit_s(samples: Sequence[Sample]) -> float | None:
    """Returns the mean time of the runs that met the target [s], or None if none did."""
    times_s = _times_s(samples, is_hit=True)
    return statistics.fmean(times_s) if times_s else None


def expected_time_s(samples: Sequence[Sample]) -> float:
    """Returns what a hit costs if misses are run again [s]: all time spent / hits; inf without one.

    Equals T_hit + (1 - p) / p * T_miss, with p the success rate and T the mean times.
    Source: Hansen et al. 2016, COCO: Performance Assessment, section 5.3, arXiv:1605.03560.
    """
    hits = sum(sample.is_hit for sample in samples)
    return math.fsum(sample.spent_s for sample in samples) / hits if hits else math.inf


def bootstrap_interval_s(
    samples: Sequence[Sample], *, confidence: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Returns the bootstrap percentile interval of the expected time [s]; an end may be infinite.

    The textbook's way: runs are drawn with replacement, and draws without a hit count as infinite.
    Far too short where no run missed, as no draw has a miss then: there
    `expected_time_interval_s` holds.

    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, section 13.3.
    """
    assert samples
    # Sorted, so that the order of the runs does not matter.
    spent_s, is_hit = np.array(sorted(samples)).T
    counts = _resamples(len(samples), seed)
    with np.errstate(divide="ignore"):
        return _central(counts @ spent_s / (counts @ is_hit), confidence)


def expected_time_interval_s(
    samples: Sequence[Sample],
    *,
    confidence: float = 0.95,
    seed: int = 0,
    miss_s: float | None = None,
) -> tuple[float, float]:
    """Returns a fiducial interval of the expected time with restarts [s]; an end may be infinite.

    What `expected_time_draws_s` draws, without the tails, and always around the estimate. Without a
    spread of times to go by (a single run, or one hit and one miss) it is (0, inf).

    Measured (tests/benchmarks/bench_certify.py), over success rates from 0.5 to 1, a 95 % interval
    covers the truth in 94 to 97 % of cases with 20 runs or more, and in 96 to 99.6 % with 5 or 10:
    counts of hits are few, and where none can be left out, too much is covered. At single rates it
    is 94 to 99 %; the bootstrap's is as little as 21 %.
    """
    estimate = expected_time_s(samples)
    low, high = _central(expected_time_draws_s(samples, seed=seed, miss_s=miss_s), confidence)
    return min(low, estimate), max(high, estimate)


def expected_time_draws_s(
    samples: Sequence[Sample], *, seed: int = 0, miss_s: float | None = None
) -> Array:
    """Returns draws of what the expected time may be [s], shape `(NUM_DRAWS,)`, some infinite.

    The success rate is drawn from the generalized fiducial distribution of a binomial: half of the
    draws from Beta(k, n - k + 1), half from Beta(k + 1, n - k), the two ends of Clopper and
    Pearson; so where no run missed, half of the draws say that none ever will. The mean times of
    hits and of misses are drawn from Student's t.

    Args:
        samples: The runs.
        seed: Which draws.
        miss_s: What a miss costs where none was seen: the time limit in the `anytime` mode. By
            default the longest run seen, which is right if runs have a fixed length.

    Source: Hannig 2009, On generalized fiducial inference, Statistica Sinica 19, example 6.
    """
    hit_s, missed_s = _times_s(samples, is_hit=True), _times_s(samples, is_hit=False)
    groups = [times_s for times_s in (hit_s, missed_s) if times_s]
    degrees = len(samples) - len(groups)
    if degrees < 1:
        return np.repeat([0.0, math.inf], NUM_DRAWS // 2)
    pooled = math.sqrt(math.fsum(_relative_squares(times_s) for times_s in groups) / degrees)
    rate = _rate_draws(len(hit_s), len(samples), seed)
    unseen_s = max(hit_s, default=0.0) if miss_s is None else miss_s
    hit_draws = _mean_draws_s(hit_s, pooled, degrees, (seed, 1)) if hit_s else 0.0
    miss_draws = _mean_draws_s(missed_s, pooled, degrees, (seed, 2)) if missed_s else unseen_s
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(rate > 0, hit_draws + (1 - rate) / rate * miss_draws, math.inf)


def _times_s(samples: Sequence[Sample], *, is_hit: bool) -> list[float]:
    return [sample.spent_s for sample in samples if sample.is_hit == is_hit]


def _relative_squares(times_s: Sequence[float]) -> float:
    """Returns the sum of squared deviations from the mean, as shares of the mean."""
    mean_s = statistics.fmean(times_s)
    return math.fsum((time_s / mean_s - 1) ** 2 for time_s in times_s)


def _mean_draws_s(
    times_s: Sequence[float], pooled: float, pooled_degrees: int, stream: tuple[int, int]
) -> Array:
    """Returns draws of a group's mean time [s]; a group of one or two borrows the others' spread.

    With one degree of freedom of its own, Student's t would make the interval useless.
    """
    degrees = len(times_s) - 1
    is_own = degrees >= 2
    spread = math.sqrt(_relative_squares(times_s) / degrees) if is_own else pooled
    draws = _student_draws(degrees if is_own else pooled_degrees, stream)
    relative = 1 + spread / math.sqrt(len(times_s)) * draws
    return np.asarray(statistics.fmean(times_s) * np.maximum(relative, 0.0))


@lru_cache(maxsize=4)
def _resamples(n: int, seed: int) -> Array:
    """Returns how often each draw with replacement has each run, shape `(NUM_DRAWS, n)`."""
    chosen = np.random.default_rng(seed).integers(n, size=(NUM_DRAWS, n))
    cells = chosen + n * np.arange(NUM_DRAWS)[:, None]
    return np.bincount(cells.ravel(), minlength=NUM_DRAWS * n).reshape(NUM_DRAWS, n).astype(float)


@lru_cache(maxsize=512)
def _rate_draws(hits: int, n: int, seed: int) -> Array:
    """Returns draws of the success rate at even quantiles, shuffled, shape `(NUM_DRAWS,)`."""
    from scipy.special import betaincinv

    half = (np.arange(NUM_DRAWS // 2) + 0.5) / (NUM_DRAWS // 2)
    lower = betaincinv(hits, n - hits + 1, half) if hits else np.zeros_like(half)
    upper = betaincinv(hits + 1, n - hits, half) if hits < n else np.ones_like(half)
    return np.random.default_rng((seed, 0)).permutation(np.concatenate([lower, upper]))


@lru_cache(maxsize=512)
def _student_draws(degrees: int, stream: tuple[int, int]) -> Array:
    """Returns draws of Student's t at even quantiles, shuffled, shape `(NUM_DRAWS,)`."""
    from scipy.special import stdtrit

    quantiles = (np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS
    return np.random.default_rng(stream).permutation(stdtrit(degrees, quantiles))


def _central(draws: Array, confidence: float) -> tuple[float, float]:
    """Returns the two draws that leave the same tail on each side. No averaging: some are inf."""
    ordered = np.sort(draws)
    tail = int((1 - confidence) / 2 * len(ordered))
    return float(ordered[tail]), float(ordered[-1 - tail])


def median_interval_s(times_s: Sequence[float | None], *, confidence: float = 0.95) -> Interval:
    """Returns an interval of the median [s] between two of the times; a miss (None) is infinite.

    Holds for any distribution. The ends are the innermost pair of ordered times, the same number
    from each side, that has the confidence; `Interval.confidence` is what the pair has. Five runs
    or fewer are too few for 95 %: then it is the whole range, 93.75 % with five. Six runs that all
    met the target give 96.9 % with two finite ends.

    Source: David and Nagaraja 2003, Order Statistics, section 7.1.
    """
    assert times_s
    ordered = sorted(math.inf if time is None else time for time in times_s)
    n = len(ordered)
    # Chances that at most so many of n lie below their median; never falling.
    tails = [count / 2**n for count in accumulate(math.comb(n, i) for i in range(n + 1))]
    left_out = max(0, bisect_right(tails, (1 - confidence) / 2) - 1)
    attained = 1 - 2 * tails[left_out]
    return Interval(ordered[left_out], ordered[n - 1 - left_out], max(0.0, attained))


class Comparison(NamedTuple):
    """Whether one recipe is faster than another, from runs side by side."""

    ratio: float | None
    """Time of the first / time of the second; below 1 the first is faster. None if neither hit."""
    low: float
    high: float
    """The interval of the ratio."""
    p_value: float
    """One-sided: small where the first is faster."""
    num_pairs: int
    method: str
    """What ratio, interval and p-value are, in words."""


def compare(
    a: Sequence[Sample],
    b: Sequence[Sample],
    *,
    confidence: float = 0.95,
    miss_s: float | None = None,
) -> Comparison:
    """Returns how the times of `a` compare with those of `b`, run by run: pairs share a seed.

    Where every run met the target: Student's paired t on log time, and the ratio is the geometric
    mean. Where some missed: the ratio of the expected times with restarts, its interval from
    independent fiducial draws of both, and `signed_rank_p_value` on log time, in which a miss is
    slower than any hit and two misses are equal.

    Source: Student 1908, The probable error of a mean; computed by scipy's `ttest_rel`.
    """
    assert len(a) == len(b) > 0, (len(a), len(b))
    if all(sample.is_hit for sample in [*a, *b]):
        return _compare_hits(a, b, confidence)
    low, high = _ratio_interval(a, b, confidence, miss_s)
    method = "ratio of expected times with restarts, fiducial interval; exact signed-rank test"
    p_value = signed_rank_p_value([_log_ratio(x, y) for x, y in zip(a, b, strict=True)])
    return Comparison(_ratio_of_expected(a, b), low, high, p_value, len(a), method)


def _compare_hits(a: Sequence[Sample], b: Sequence[Sample], confidence: float) -> Comparison:
    from scipy.stats import ttest_rel

    differences = [_log_ratio(x, y) for x, y in zip(a, b, strict=True)]
    ratio = math.exp(statistics.fmean(differences))
    if max(differences) - min(differences) < EQUAL_LOGS:
        ends = (0.0, math.inf) if len(a) == 1 else (ratio, ratio)
        p_value = signed_rank_p_value(differences)
        return Comparison(ratio, *ends, p_value, len(a), "no spread of times; exact sign test")
    logs = [[math.log(sample.spent_s) for sample in samples] for samples in (a, b)]
    test = ttest_rel(*logs, alternative="less")
    ends = ttest_rel(*logs).confidence_interval(confidence)
    low, high = (_exp(float(end)) for end in ends)
    method = "geometric mean ratio, paired t-test on log time"
    return Comparison(ratio, low, high, float(test.pvalue), len(a), method)


def _exp(value: float) -> float:
    return math.inf if value > LARGEST_LOG else math.exp(value)


def _log_ratio(a: Sample, b: Sample) -> float:
    """Returns ln(a / b) of two runs; infinite where one of them missed, 0 where both did."""
    if a.is_hit and b.is_hit:
        return math.log(a.spent_s) - math.log(b.spent_s)
    return 0.0 if a.is_hit == b.is_hit else math.copysign(math.inf, b.is_hit - a.is_hit - 0.5)


def _ratio_of_expected(a: Sequence[Sample], b: Sequence[Sample]) -> float | None:
    expected_a, expected_b = expected_time_s(a), expected_time_s(b)
    return None if math.isinf(expected_a) and math.isinf(expected_b) else expected_a / expected_b


def _ratio_interval(
    a: Sequence[Sample], b: Sequence[Sample], confidence: float, miss_s: float | None
) -> tuple[float, float]:
    """Returns the interval of expected time of `a` / that of `b`; wide where both may be inf."""
    above = expected_time_draws_s(a, seed=0, miss_s=miss_s)
    below = expected_time_draws_s(b, seed=1, miss_s=miss_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = above / below
    low = _central(np.nan_to_num(ratios, nan=0.0, posinf=math.inf), confidence)[0]
    high = _central(np.nan_to_num(ratios, nan=math.inf, posinf=math.inf), confidence)[1]
    ratio = _ratio_of_expected(a, b)
    return (low, high) if ratio is None else (min(low, ratio), max(high, ratio))


def signed_rank_p_value(differences: Sequence[float]) -> float:
    """Returns the p-value of Wilcoxon's signed-rank test; small where differences are negative.

    Exact for any number and with ties: the null distribution of the positive ranks' sum over all
    signs. Equal magnitudes, infinite ones too, share their middle rank; zeros are left out. With n
    differences it is never below 2^-n.

    Source: Wilcoxon 1945, Individual comparisons by ranking methods; scipy's exact method knows no
    ties, therefore counted here.
    """
    from scipy.stats import rankdata

    kept = np.array([value for value in differences if value != 0])
    # Ranks in halves, so that middle ranks are whole numbers.
    doubled = np.round(2 * rankdata(np.abs(kept))).astype(int) if kept.size else kept.astype(int)
    chances = np.ones(1)
    for rank in doubled:
        with_rank = np.concatenate([np.zeros(rank), chances])
        chances = (np.pad(chances, (0, rank)) + with_rank) / 2
    return float(chances[: doubled[kept > 0].sum() + 1].sum())


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values adjusted for there being many, in the order given.

    Those at most α reject, with a chance of at most α that any of the true ones is rejected.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure, section 3.
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


class TimeInterval(Record):
    """Where a time lies."""

    low_s: float | None
    """Lower end [s]; None: infinite."""
    high_s: float | None
    """Upper end [s]; None: infinite."""
    confidence: float
    """Chance that such an interval holds the truth, in (0, 1)."""


class RateInterval(Record):
    """Where a success rate lies."""

    low: float
    """Lower end, in [0, 1]."""
    high: float
    """Upper end, in [0, 1]."""
    confidence: float
    """Chance that such an interval holds the truth, in (0, 1)."""


def finite_or_none(value: float) -> float | None:
    """Returns `value`, or None if it is infinite: how a certificate writes such a time."""
    assert not math.isnan(value)
    return value if math.isfinite(value) else None


LEAST_MISS_S = 1e-3


def sample_of(run: RunResult) -> Sample:
    """Returns what statistics need of a run."""
    time_s = run.time_to_target_s
    # A run that failed at once took no training time, but a miss is never free.
    spent_s = max(run.clocks.train_s, LEAST_MISS_S) if time_s is None else time_s
    return Sample(spent_s, time_s is not None)
