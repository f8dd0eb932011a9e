"""What a few runs of a recipe say, and how sure that is: `RunStatistics.of(record)`."""

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tune_speed.core.records import NOT_CERTIFIED, Record, RunResult, TrialRecord
from tune_speed.core.text import Interval

Array = NDArray[np.float64]
# Draws of an interval; each end leaves out about a hundred.
NUM_DRAWS = 4096


@lru_cache(maxsize=1024)
def wilson_interval(hits: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Returns the Wilson score interval of a success rate of which `hits` of `n` were seen.

    (p + z²/2n ± z √(p (1 - p)/n + z²/4n²)) / (1 + z²/n) with p = hits/n and z the normal quantile.
    Source: Wilson 1927, Probable inference.
    """
    # Written out, as scipy.stats takes longer to import than a leaderboard takes to be read.
    assert 0 <= hits <= n and n > 0, (hits, n)
    rate, z = hits / n, statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    middle = rate + z * z / (2 * n)
    half = z * math.sqrt(rate * (1 - rate) / n + (z / (2 * n)) ** 2)
    scale = 1 + z * z / n
    low, high = (middle - half) / scale, (middle + half) / scale
    # With no hit or no miss the formula's end is 0 or 1 but for rounding: 3e-17 at 0 of 5.
    return (low if hits else 0.0), (high if hits < n else 1.0)


def student_quantile(degrees: int, *, confidence: float = 0.95) -> float:
    """Returns how many standard errors an interval of Student's t reaches to either side."""
    # Here, as importing it takes a tenth of a second.
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + confidence) / 2))


def deviation(values: Sequence[float]) -> float | None:
    """Returns the sample standard deviation, n - 1 in the denominator; None of a single value."""
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    # `statistics.stdev` computes with fractions, which takes ten times as long.
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def mean_interval(
    values: Sequence[float],
    *,
    confidence: float = 0.95,
    is_positive: bool = False,
    is_share: bool = False,
) -> Interval:
    """Returns the mean with its interval by Student's t; of a single value without one.

    Holds for values that are about normal. Not for times to target, where a miss has no value:
    `expected_time_interval_s` is for those.

    With `is_positive`, as for times, it is m · exp(± h / m) with the half width h: never below 0.
    With `is_share`, for values in [0, 1], its logit is logit(m) ± h / (m (1 - m)): never outside.

    Sources: Student 1908, The probable error of a mean, with scipy's quantile; on the logarithm and
    the logit by the delta method, as Oehlert 1992, A note on the delta method.
    """
    assert values
    mean, sd, n = statistics.fmean(values), deviation(values), len(values)
    if sd is None:
        return Interval(mean)
    half_width = student_quantile(n - 1, confidence=confidence) * sd / math.sqrt(n)
    if is_positive and mean > 0:
        factor = math.exp(half_width / mean)
        return Interval(mean, mean / factor, mean * factor)
    if is_share and 0 < mean < 1:
        middle, reach = math.log(mean / (1 - mean)), half_width / (mean * (1 - mean))
        low, high = ((1 + math.tanh((middle + side * reach) / 2)) / 2 for side in (-1, 1))
        return Interval(mean, min(low, mean), max(high, mean))
    return Interval(mean, mean - half_width, mean + half_width)


def median_time_s(times_s: Sequence[float | None]) -> float | None:
    """Returns the median [s] of times in which a miss (None) is infinite; None: so is it."""
    median = statistics.median(math.inf if time is None else time for time in times_s)
    return median if math.isfinite(median) else None


class Sample(NamedTuple):
    """One run of a recipe."""

    spent_s: float
    """Training clock until the target held [s]; in a miss, until the run ended."""
    is_hit: bool


def expected_time_s(samples: Sequence[Sample]) -> float:
    """Returns what a hit costs if misses are run again [s]: all time spent / hits; inf without one.

    Equals T_hit + (1 - p) / p * T_miss, with p the success rate and T the mean times.
    Source: Hansen et al. 2016, COCO: Performance Assessment, section 5.3, arXiv:1605.03560.
    """
    hits = sum(sample.is_hit for sample in samples)
    return math.fsum(sample.spent_s for sample in samples) / hits if hits else math.inf


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
    low, high = central(expected_time_draws_s(samples, seed=seed, miss_s=miss_s), confidence)
    return min(low, estimate), max(high, estimate)


def expected_time_draws_s(
    samples: Sequence[Sample], *, seed: int = 0, miss_s: float | None = None
) -> Array:
    """Returns draws of what the expected time may be [s], shape `(NUM_DRAWS,)`, some infinite.

    The success rate is drawn from the generalized fiducial distribution of a binomial: half of the
    draws from Beta(k, n - k + 1), half from Beta(k + 1, n - k), the two ends of Clopper and
    Pearson; so where no run missed, half of the draws say that none ever will. The mean times of
    hits and of misses are drawn from Student's t, on a log scale: none is below 0.

    `miss_s` is what a miss costs where none was seen: the time limit in the `anytime` mode. By
    default it is the longest run seen, which is right if runs have a fixed length.

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
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        missed = np.where(rate < 1, (1 - rate) / rate * miss_draws, 0.0)
        return np.where(rate > 0, hit_draws + missed, math.inf)


def _times_s(samples: Sequence[Sample], *, is_hit: bool) -> list[float]:
    return [sample.spent_s for sample in samples if sample.is_hit == is_hit]


def _relative_squares(times_s: Sequence[float]) -> float:
    mean_s = statistics.fmean(times_s)
    return math.fsum((time_s / mean_s - 1) ** 2 for time_s in times_s)


def _mean_draws_s(
    times_s: Sequence[float], pooled: float, pooled_degrees: int, stream: tuple[int, int]
) -> Array:
    """Returns draws of a group's mean time [s]; one of two or fewer borrows the others' spread."""
    degrees = len(times_s) - 1
    # With one degree of freedom of its own, Student's t would make the interval useless.
    is_own = degrees >= 2
    spread = math.sqrt(_relative_squares(times_s) / degrees) if is_own else pooled
    draws = _student_draws(degrees if is_own else pooled_degrees, stream)
    with np.errstate(over="ignore"):
        relative = np.exp(spread / math.sqrt(len(times_s)) * draws)
        return np.asarray(statistics.fmean(times_s) * relative)


@lru_cache(maxsize=512)
def _rate_draws(hits: int, n: int, seed: int) -> Array:
    """Returns draws of the success rate at even quantiles, shuffled, shape `(NUM_DRAWS,)`."""
    from scipy.special import betaincinv

    half = (np.arange(NUM_DRAWS // 2) + 0.5) / (NUM_DRAWS // 2)
    # Without hits (misses) one end is the point 0 (1), for which `betaincinv` returns NaN.
    lower = betaincinv(hits, n - hits + 1, half) if hits else np.zeros_like(half)
    upper = betaincinv(hits + 1, n - hits, half) if hits < n else np.ones_like(half)
    return np.random.default_rng((seed, 0)).permutation(np.concatenate([lower, upper]))


@lru_cache(maxsize=512)
def _student_draws(degrees: int, stream: tuple[int, int]) -> Array:
    """Returns draws of Student's t at even quantiles, shuffled, shape `(NUM_DRAWS,)`."""
    from scipy.special import stdtrit

    quantiles = (np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS
    return np.random.default_rng(stream).permutation(stdtrit(degrees, quantiles))


def central(draws: Array, confidence: float) -> tuple[float, float]:
    """Returns the two draws that leave the same tail on each side."""
    # No interpolation between draws, as np.quantile does: some are infinite.
    ordered = np.sort(draws)
    tail = int((1 - confidence) / 2 * len(ordered))
    return float(ordered[tail]), float(ordered[-1 - tail])


def median_interval_s(
    times_s: Sequence[float | None], *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Returns the ends of the median's interval [s], two of the times, and its confidence.

    Holds for any distribution; a miss (None) is infinite. The ends are the innermost pair of
    ordered times, the same number from each side, that has the confidence; returned is what the
    pair has. Five runs or fewer are too few for 95 %: then it is the whole range, 93.75 % with
    five. Six runs that all met the target give 96.9 % with two finite ends.

    Source: David and Nagaraja 2003, Order Statistics, section 7.1.
    """
    assert times_s
    ordered = sorted(math.inf if time is None else time for time in times_s)
    n = len(ordered)
    # Chances that at most so many of n lie below their median; never falling.
    tails = [count / 2**n for count in accumulate(math.comb(n, i) for i in range(n + 1))]
    left_out = max(0, bisect_right(tails, (1 - confidence) / 2) - 1)
    attained = 1 - 2 * tails[left_out]
    return ordered[left_out], ordered[n - 1 - left_out], max(0.0, attained)


class TimeInterval(Record):
    """Where a time lies."""

    low_s: float | None
    """Lower end [s]; None: infinite."""
    high_s: float | None
    """Upper end [s]; None: infinite."""
    confidence: float
    """Chance that such an interval holds the truth, in (0, 1)."""

    @classmethod
    def of(cls, low_s: float, high_s: float, confidence: float) -> Self:
        """Returns the interval between two ends [s], infinite ones as None."""
        ends = {"low_s": finite_or_none(low_s), "high_s": finite_or_none(high_s)}
        return cls(**ends, confidence=confidence)


class RateInterval(Record):
    """Where a success rate lies."""

    low: float
    """Lower end, in [0, 1]."""
    high: float
    """Upper end, in [0, 1]."""
    confidence: float
    """Chance that such an interval holds the truth, in (0, 1)."""


def finite_or_none(value: float | None) -> float | None:
    """Returns `value`, or None if it is infinite: how a certificate writes such a time."""
    assert value is None or not math.isnan(value)
    return None if value is None or math.isinf(value) else value


# In seconds. Spreads are relative to the mean of the misses, so that must not be 0.
LEAST_MISS_S = 1e-3


def sample_of(run: RunResult) -> Sample:
    time_s = run.time_to_target_s
    # A run that failed at once took no training time, but a miss is never free.
    spent_s = max(run.clocks.train_s, LEAST_MISS_S) if time_s is None else time_s
    return Sample(spent_s, time_s is not None)


def ranked_s(record: TrialRecord) -> float | None:
    """Returns the time [s] by which a record is ranked; None where it has no rank.

    That is the expected time with restarts, for a single run its time; where the best metric within
    a time is sought, that time. None: half of the runs missed, or the certification was disturbed.
    """
    if record.verdict == NOT_CERTIFIED:
        return None
    times_s = [run.time_to_target_s for run in record.runs]
    within_s: float | None = (record.workload.get("target") or {}).get("within_s")
    if within_s is not None:
        return None if not times_s or median_time_s(times_s) is None else within_s
    if len(times_s) < 2 or median_time_s(times_s) is None:
        return times_s[0] if len(times_s) == 1 else None
    return expected_time_s([sample_of(run) for run in record.runs])


@dataclass(frozen=True)
class RunStatistics:
    """What runs of one recipe say together; each figure is computed when it is first read.

    A `TimeInterval` has None for an infinite end, `expected_s` is infinite without a hit.
    """

    samples: tuple[Sample, ...]
    miss_s: float | None = None
    """What a miss costs where none was seen [s]; see `expected_time_draws_s`."""
    confidence: float = 0.95

    @classmethod
    def of(cls, record: TrialRecord, *, confidence: float = 0.95) -> Self:
        return cls(tuple(map(sample_of, record.runs)), record.miss_s, confidence)

    @property
    def n(self) -> int:
        return len(self.samples)

    @property
    def hits(self) -> int:
        return sum(sample.is_hit for sample in self.samples)

    @property
    def hits_s(self) -> list[float]:
        return _times_s(self.samples, is_hit=True)

    @property
    def times_s(self) -> tuple[float | None, ...]:
        """Times to target [s], run by run; None: a miss, which is infinite."""
        return tuple(sample.spent_s if sample.is_hit else None for sample in self.samples)

    @property
    def spent_s(self) -> float:
        return math.fsum(sample.spent_s for sample in self.samples)

    @property
    def success_rate(self) -> RateInterval:
        low, high = wilson_interval(self.hits, self.n, confidence=self.confidence)
        return RateInterval(low=low, high=high, confidence=self.confidence)

    @property
    def median_s(self) -> float | None:
        """Median time to target [s], misses as infinite; None: infinite, or no runs."""
        return median_time_s(self.times_s) if self.samples else None

    @property
    def median_interval(self) -> TimeInterval:
        """Where the median lies; its confidence is what so few runs give, 0 for a single one."""
        return TimeInterval.of(*median_interval_s(self.times_s, confidence=self.confidence))

    @property
    def mean_hit_s(self) -> float | None:
        return statistics.fmean(self.hits_s) if self.hits else None

    @property
    def expected_s(self) -> float:
        """Expected time with restarts [s]; infinite without a hit."""
        return expected_time_s(self.samples)

    @cached_property
    def expected_interval(self) -> TimeInterval:
        ends = expected_time_interval_s(
            self.samples, confidence=self.confidence, miss_s=self.miss_s
        )
        return TimeInterval.of(*ends, self.confidence)
