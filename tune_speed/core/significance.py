"""Tests on runs: whether one recipe is faster than another, and how sure that is."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tune_speed.core.stats import Sample, central, expected_time_draws_s, expected_time_s

# Log times that differ by less show no spread: rounding, no clock is as fine.
EQUAL_LOGS = 1e-9
# Its exponential is still a finite number.
LARGEST_LOG = 700.0


class Comparison(NamedTuple):
    """Whether one recipe is faster than another, from runs side by side."""

    ratio: float | None
    """Time of the first / time of the second; below 1 the first is faster. None if neither hit."""
    low: float
    high: float
    p_value: float
    """One-sided: small where the first is faster."""
    num_pairs: int
    method: str


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
    low, high = (math.inf if end > LARGEST_LOG else math.exp(end) for end in ends)
    method = "geometric mean ratio, paired t-test on log time"
    return Comparison(ratio, low, high, float(test.pvalue), len(a), method)


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
    # With one seed the draws of both would rise and fall together, and the ratio look too certain.
    above = expected_time_draws_s(a, seed=0, miss_s=miss_s)
    below = expected_time_draws_s(b, seed=1, miss_s=miss_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = above / below
    # ∞ / ∞ may be any ratio: 0 for the lower end, ∞ for the upper.
    low = central(np.nan_to_num(ratios, nan=0.0, posinf=math.inf), confidence)[0]
    high = central(np.nan_to_num(ratios, nan=math.inf, posinf=math.inf), confidence)[1]
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
        chances = (np.pad(chances, (0, rank)) + np.concatenate([np.zeros(rank), chances])) / 2
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
