"""Figures of several runs: the mean over seeds, and the speed-up over another recipe."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class MeanInterval(NamedTuple):
    """A mean, and how sure it is."""

    mean: float
    sd: float | None
    """Sample standard deviation, n - 1 in the denominator; None of a single run."""
    low: float | None
    """Lower end of the interval of the mean; None of a single run."""
    high: float | None
    n: int


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> MeanInterval:
    """Returns mean, standard deviation and Student's t interval of the mean.

    Holds for values that are about normal. Not for times to target, where a miss has no value:
    `tune_speed.core.stats.expected_time_interval_s` is for those.

    Source: Student 1908, The probable error of a mean; quantile by scipy.
    """
    from scipy.special import stdtrit

    assert values
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return MeanInterval(mean, None, None, None, n)
    sd = statistics.stdev(values)
    half_width = float(stdtrit(n - 1, (1 + confidence) / 2)) * sd / math.sqrt(n)
    return MeanInterval(mean, sd, mean - half_width, mean + half_width, n)


def speed_up(base_s: float, variant_s: float) -> float:
    """Returns S = T_base / T_variant: above 1 the variant is faster.

    With the base in fp32 and the variant in mixed precision it is S0's S_mixed.
    """
    assert base_s > 0 and variant_s > 0, (base_s, variant_s)
    return base_s / variant_s
