"""What changes do: one linear model of all arms and seeds, for every design.

Each seed is a block in which every arm ran once. With y the response, larger being better,

    y(arm, seed) = mean of the arm + effect of the seed + error,

in which the errors of a seed may spread and hang together as they like: arms do not share a
variance. What the table has are contrasts of the arms' means, by least squares in each block:

    main           y(A, others) - y(base's A, others), the mean over all pairs of arms that differ
                   by A alone: of a factorial the main effect, of `one-at-a-time` and `stacking`
                   what A does alone, of `leave-one-out` and `cumulative` what it adds to the others
    interaction    y(A + B) - y(base) - [y(A) - y(base)] - [y(B) - y(base)]

For y = -ln(time) the first are logarithms of speed-ups, and of an interaction above 0 the two gain
more together than one by one.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from tune_speed.core.records import Record
from tune_speed.core.significance import holm
from tune_speed.core.stats import mean_interval
from tune_speed.experiments.ablation.design import TIMES, Arm, Axis

# Contrasts that differ by less are equal but for rounding: no clock and no score is as fine.
NO_SPREAD = 1e-9

Kind = Literal["main", "interaction"]
Values = Mapping[str, Mapping[int, float]]
"""Responses by arm and seed."""


class Estimate(Record):
    """A contrast's mean over blocks, and how sure it is."""

    value: float | None
    """Mean of the contrast over the blocks; None without a block."""
    low: float | None = None
    """Lower end of its interval; None with fewer than two blocks, or where all agree."""
    high: float | None = None
    """Upper end of it; None where `low` is."""
    p_value: float | None = None
    """Two-sided, that the contrast is 0; None with fewer than two blocks."""
    p_holm: float | None = None
    n: int


class Contrast(NamedTuple):
    """A weighted sum of the arms' responses, with weights that add up to 0."""

    kind: Kind
    name: str
    """Label of the level; of an interaction the labels, joined by ` × `."""
    weights: Mapping[str, float]
    """Weight of each arm by its name; positive where the change gains."""


def contrasts_of(axes: Sequence[Axis], arms: Sequence[Arm]) -> tuple[Contrast, ...]:
    """Returns what `arms` can tell, main effects first, in the order of axes and of arms.

    A main effect needs two arms that differ by its level alone; an interaction each of its levels
    alone.
    """
    by_levels = {arm.levels: arm.name for arm in arms}
    return (*_main_effects(axes, by_levels), *_interactions(axes, by_levels))


def _main_effects(
    axes: Sequence[Axis], by_levels: Mapping[tuple[int, ...], str]
) -> Iterator[Contrast]:
    for index, axis in enumerate(axes):
        for number, level in enumerate(axis.levels, start=1):
            pairs = [
                (arm, by_levels.get((*levels[:index], 0, *levels[index + 1 :])))
                for levels, arm in by_levels.items()
                if levels[index] == number
            ]
            known = {arm: without for arm, without in pairs if without is not None}
            weights = dict.fromkeys(known, 1 / max(1, len(known)))
            weights |= {without: -weights[arm] for arm, without in known.items()}
            if weights:
                yield Contrast("main", level.label, weights)


def _interactions(
    axes: Sequence[Axis], by_levels: Mapping[tuple[int, ...], str]
) -> Iterator[Contrast]:
    base = by_levels[(0,) * len(axes)]
    for levels, arm in by_levels.items():
        changed = [index for index, level in enumerate(levels) if level]
        alone = [tuple(n if i == index else 0 for i, n in enumerate(levels)) for index in changed]
        if len(changed) < 2 or not by_levels.keys() >= set(alone):
            continue
        name = TIMES.join(axes[index].levels[levels[index] - 1].label for index in changed)
        # The base is subtracted once and added for each single: the weights add up to 0.
        weights = {arm: 1.0, base: len(alone) - 1.0} | {by_levels[one]: -1.0 for one in alone}
        yield Contrast("interaction", name, weights)


def estimate(weights: Mapping[str, float], values: Values, *, confidence: float = 0.95) -> Estimate:
    """Returns a contrast's mean over the blocks that have all its arms, with an interval.

    With c_i the contrast of block i of n, the interval is mean(c) ± t · sd(c) / √n, with t the
    quantile of Student's t for n - 1 degrees of freedom, and the p-value is that of the t-test
    against 0. Only the c_i must be alike: a variance that all arms share would give intervals that
    are too narrow for noisy arms. Where all blocks agree there is no interval, and the p-value is
    the sign test's, 2^(1 - n), or 1 for a contrast of 0.

    Source: Student 1908, The probable error of a mean.
    """
    runs = [values.get(arm, {}) for arm in weights]
    seeds = sorted(set(runs[0]).intersection(*runs[1:]))
    blocks = np.array([[run[seed] for run in runs] for seed in seeds]).reshape(-1, len(runs))
    found = blocks[np.isfinite(blocks).all(axis=1)] @ list(weights.values())
    if len(found) < 2:
        return Estimate(value=float(found[0]) if len(found) else None, n=len(found))
    mean = statistics.fmean(found)
    if np.ptp(found) < NO_SPREAD:
        # n runs may agree by chance, as scores are counts: an interval of no width would be wrong.
        p_value = 2.0 ** (1 - len(found)) if abs(mean) > NO_SPREAD else 1.0
        return Estimate(value=mean, p_value=p_value, n=len(found))
    from scipy.special import stdtr

    error = float(found.std(ddof=1)) / math.sqrt(len(found))
    ends = mean_interval(found.tolist(), confidence=confidence)
    # By the lower tail: 1 less the upper one would round a small p-value to 0.
    p_value = 2 * float(stdtr(len(found) - 1, -abs(mean / error)))
    return Estimate(value=mean, low=ends.low, high=ends.high, p_value=p_value, n=len(found))


def with_holm(estimates: Sequence[Estimate]) -> tuple[Estimate, ...]:
    """Returns the estimates with `p_holm`, adjusted for all of them that have a p-value."""
    adjusted = iter(holm([each.p_value for each in estimates if each.p_value is not None]))
    return tuple(
        each if each.p_value is None else each.model_copy(update={"p_holm": next(adjusted)})
        for each in estimates
    )
