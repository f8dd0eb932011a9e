"""Length of a run with which nearly all seeds meet the target, against restarts of what misses.

A recipe that meets its target in three of five runs pays for the other two. A little longer, its
mean accuracy exceeds the target by a margin, and most of its runs meet it. The rise is taken to be
linear in ln(length) and the spread between seeds constant: fair for steps of some ten percent.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from tune_speed.core.comparability import goodness, sign_of
from tune_speed.core.targets import Target

SUCCESS_RATE = 0.95
"""Share of runs that a margin is to make meet the target."""
# Fewer say nothing about the spread between seeds.
LEAST_RUNS = 3
# Beyond this much longer, a straight line in ln(length) is guesswork.
LONGEST_FACTOR = 2.0


class Slope(NamedTuple):
    """Rise of the final metric per unit of ln(length)."""

    per_ln: float
    standard_error: float


class Margin(NamedTuple):
    """The longer run against the present length; times include restarts of misses."""

    mean: float
    """Mean of the final metric at present."""
    deviation: float
    """Its sample standard deviation over runs."""
    needed_mean: float
    """The mean at which the wanted share of runs meets the target."""
    length_factor: float
    """Longer run / present run; below 1 where the mean has room to spare."""
    longer_s: float
    """Expected time of the longer run [s]."""
    present_s: float
    """Expected time at the present length [s]; inf where no run met the target."""


def needed_mean(
    target: float, deviation: float, *, n: int, success_rate: float = SUCCESS_RATE
) -> float:
    """Returns the mean metric with which a further run meets the target at that rate.

    Target + t(n − 1) · √(1 + 1/n) · deviation, Student's quantile at the rate: mean and deviation
    are estimates from n runs. With the normal quantile 86 % of runs after three met it, not 95.

    Source: Hahn and Meeker 1991, Statistical Intervals, section 4.7, prediction of one observation.
    """
    from scipy.special import stdtrit

    return target + float(stdtrit(n - 1, success_rate)) * math.sqrt(1 + 1 / n) * deviation


def estimate_slope(points: Sequence[tuple[float, float]]) -> Slope | None:
    """Returns the rise per ln(length) of `(length, final metric)` pairs, or None if it is unclear.

    Lengths may be in seconds or epochs. Unclear: fewer than three pairs, all of one length, or a
    95 % lower bound that is not above 0. Least squares on ln(length).

    Source: Draper and Smith 1998, Applied Regression Analysis, sections 1.2 and 1.4; computed by
    scipy's `linregress`.
    """
    if len(points) < LEAST_RUNS or len({length for length, _ in points}) < 2:
        return None
    from scipy.stats import linregress, t

    fit = linregress([math.log(length) for length, _ in points], [metric for _, metric in points])
    slope = Slope(float(fit.slope), float(fit.stderr))
    # Two degrees of freedom less than points: a line has an intercept and a slope.
    lowest = slope.per_ln - t.ppf(0.95, len(points) - 2) * slope.standard_error
    return slope if lowest > 0 else None


def margin(metrics: Sequence[float], *, target: float, run_s: float, slope: float) -> Margin:
    """Returns what a run costs with a margin and without, by two runs of a fixed length or more.

    `metrics` are their final ones, `target` is what a run must reach. `run_s` is the mean time of a
    run [s], misses included; `slope` the rise of the mean metric per ln(length), above 0.
    """
    mean, deviation = statistics.fmean(metrics), statistics.stdev(metrics)
    needed = needed_mean(target, deviation, n=len(metrics))
    factor = math.exp((needed - mean) / slope)
    hits = sum(metric >= target for metric in metrics)
    present_s = run_s * len(metrics) / hits if hits else math.inf
    return Margin(mean, deviation, needed, factor, run_s * factor / SUCCESS_RATE, present_s)


def suggestion(
    metrics: Sequence[float], *, target: Target, run_s: float, slope: float
) -> str | None:
    """Returns a line that suggests the longer run, or None if there is nothing to gain.

    `slope` is what the metric gains per unit of ln(length): where less is better, its fall.
    """
    if len(metrics) < LEAST_RUNS or slope <= 0:
        return None
    gained, enough = [goodness(m, target) for m in metrics], goodness(target.value, target)
    needed = needed_mean(enough, statistics.stdev(gained), n=len(gained))
    if needed - statistics.fmean(gained) > slope:
        # e times as long or more: refused below as well, but exp could overflow there.
        return None
    found = margin(gained, target=enough, run_s=run_s, slope=slope)
    if not 1 < found.length_factor <= LONGEST_FACTOR or found.longer_s >= found.present_s:
        return None
    hits, sign = sum(map(target.holds, metrics)), sign_of(target)
    restarts = f"{found.present_s:.3g} s with restarts" if hits else "runs that never meet it"
    return (
        f"{hits} of {len(metrics)} met the target: {sign * found.mean:.4f} on average, "
        f"SD {found.deviation:.4f}. A mean of {sign * found.needed_mean:.4f} is met by "
        f"{SUCCESS_RATE:.0%} of runs; at {sign * slope:+.4f} per ln(length) that takes runs "
        f"{found.length_factor:.2f}× as long: {found.longer_s:.3g} s expected, against {restarts}."
    )
