"""What several runs with fresh seeds say together."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from tune_speed.components.metrics.base import Metric


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


REPEATS = {
    "mean_interval": Metric(
        about="Mean ± sample standard deviation over runs, with Student's t interval of the mean:"
        " `mean_interval`.",
        unit="that of the values",
        source="S2, Next Checks 1; Student 1908",
    ),
}
