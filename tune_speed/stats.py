"""How sure a few runs make us."""

import math
import statistics
from collections.abc import Sequence


def wilson_interval(hits: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Returns the Wilson score interval of a success rate of which `hits` of `n` were seen.

    Source: Wilson 1927, Probable inference; computed by scipy's `binomtest`.
    """
    assert 0 <= hits <= n and n > 0, (hits, n)
    from scipy.stats import binomtest

    interval = binomtest(hits, n).proportion_ci(confidence_level=confidence, method="wilson")
    return float(interval.low), float(interval.high)


def median_time_s(times_s: Sequence[float | None]) -> float | None:
    """Returns the median [s] of times to target in which a miss (None) counts as infinite.

    None where the median itself is infinite: half or more of the runs missed. With an even number
    of runs the two middle ones are averaged, so one infinite middle makes the median infinite.
    """
    median = statistics.median(math.inf if time is None else time for time in times_s)
    return median if math.isfinite(median) else None
