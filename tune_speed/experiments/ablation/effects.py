"""What a change does: contrasts of arms within blocks, with intervals.

A block is one seed with which every arm was run. With y the response of an arm, larger being
better:

    alone          y(A) - y(base)
    together       y(A + B) - y(base)
    added          y(A + others) - y(others), where no arm has A alone
    main           mean of y(A, others) - y(base's A, others) over all settings of the others
    interaction    y(A + B) - y(base) - [y(A) - y(base)] - [y(B) - y(base)]

For y = -ln(time) all but the last are logarithms of speed-ups, and of an interaction above 0 the
two gain more together than one by one.
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from tune_speed.core.records import Record
from tune_speed.core.significance import holm
from tune_speed.experiments.ablation.design import TIMES, Arm, Axis

# Contrasts that differ by less are equal but for rounding: no clock and no score is as fine.
NO_SPREAD = 1e-9

Kind = Literal["alone", "together", "added", "main", "interaction"]


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
    """Labels of the levels: joined by ` + ` for arms, by ` × ` for an interaction; of `added` the
    label that is added, with ` to ` and the other arm where several arms tell it."""
    weights: Mapping[str, float]
    """Weight of each arm by its name; positive where the change gains."""


def contrasts_of(axes: Sequence[Axis], arms: Sequence[Arm]) -> tuple[Contrast, ...]:
    """Returns what `arms` can tell, by kind and then in the order of the arms.

    A level is `added` in each two arms that differ by it alone, if no arm has it by itself: where
    one has, the other kinds say as much, and every further contrast would make Holm's correction
    harsher.

    Main effects need all combinations of the levels that are among the arms, on two axes or more;
    an interaction needs each of its levels alone.
    """
    by_levels = {arm.levels: arm for arm in arms}
    base = by_levels.get((0,) * len(axes))
    assert base is not None, arms
    others = [arm for arm in arms if arm is not base]
    alone, together = (
        [arm for arm in others if (sum(level > 0 for level in arm.levels) == 1) is is_one]
        for is_one in (True, False)
    )
    return (
        *(Contrast("alone", arm.name, _against(arm, base)) for arm in alone),
        *(Contrast("together", arm.name, _against(arm, base)) for arm in together),
        *_additions(axes, by_levels),
        *_main_effects(axes, by_levels),
        *_interactions(axes, by_levels, base),
    )


def _against(arm: Arm, other: Arm) -> dict[str, float]:
    return {arm.name: 1.0, other.name: -1.0}


def _additions(
    axes: Sequence[Axis], by_levels: Mapping[tuple[int, ...], Arm]
) -> Iterator[Contrast]:
    found: list[tuple[str, Arm, Arm]] = []
    for levels, arm in by_levels.items():
        for index, level in enumerate(levels):
            without = by_levels.get((*levels[:index], 0, *levels[index + 1 :]))
            # Where an arm has it alone, this tells nothing new and makes Holm's correction harsher.
            if level and without is not None and _only(index, levels) not in by_levels:
                found.append((axes[index].levels[level - 1].label, arm, without))
    counts = Counter(label for label, _, _ in found)
    for label, arm, without in found:
        name = label if counts[label] == 1 else f"{label} to {without.name}"
        yield Contrast("added", name, _against(arm, without))


def _main_effects(
    axes: Sequence[Axis], by_levels: Mapping[tuple[int, ...], Arm]
) -> Iterator[Contrast]:
    seen = [sorted(set(column)) for column in zip(*by_levels, strict=True)]
    is_factorial = len(by_levels) == math.prod(map(len, seen))
    if not is_factorial or sum(len(levels) > 1 for levels in seen) < 2:
        return
    for index, axis in enumerate(axes):
        others = [*seen[:index], [0], *seen[index + 1 :]]
        for level in seen[index][1:]:
            weights: dict[str, float] = {}
            for without in itertools.product(*others):
                changed = (*without[:index], level, *without[index + 1 :])
                weights[by_levels[changed].name] = 1 / math.prod(map(len, others))
                weights[by_levels[without].name] = -1 / math.prod(map(len, others))
            yield Contrast("main", axis.levels[level - 1].label, weights)


def _interactions(
    axes: Sequence[Axis], by_levels: Mapping[tuple[int, ...], Arm], base: Arm
) -> Iterator[Contrast]:
    for levels, arm in by_levels.items():
        changed = [index for index, level in enumerate(levels) if level]
        alone = [by_levels.get(_only(index, levels)) for index in changed]
        singles = [single for single in alone if single is not None]
        if len(changed) < 2 or len(singles) < len(changed):
            continue
        name = TIMES.join(axes[index].levels[levels[index] - 1].label for index in changed)
        # The base is subtracted once and added for each single: the weights add up to 0.
        weights = {arm.name: 1.0, base.name: len(singles) - 1.0}
        yield Contrast("interaction", name, weights | {single.name: -1.0 for single in singles})


def _only(index: int, levels: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(level if i == index else 0 for i, level in enumerate(levels))


def estimate(
    contrast: Contrast, values: Mapping[str, Mapping[int, float]], *, confidence: float = 0.95
) -> Estimate:
    """Returns the mean of a contrast over the blocks that have all its arms, with an interval.

    With c_i the contrast of block i of n, the interval is mean(c) ± t · sd(c) / √n, with t the
    quantile of Student's t for n - 1 degrees of freedom, and the p-value is that of the t-test
    against 0. Arms may spread differently: only the c_i must be alike. Where all blocks agree there
    is no interval, and the p-value is the sign test's, 2^(1 - n), or 1 for a contrast of 0.

    Source: Student 1908, The probable error of a mean.
    """
    contrasts = _per_block(contrast, values)
    n = len(contrasts)
    mean = statistics.fmean(contrasts) if n else None
    if mean is None or n < 2:
        return Estimate(value=mean, n=n)
    if max(contrasts) - min(contrasts) < NO_SPREAD:
        # n runs may agree by chance, as scores are counts: an interval of no width would be wrong.
        p_value = 2.0 ** (1 - n) if abs(mean) > NO_SPREAD else 1.0
        return Estimate(value=mean, p_value=p_value, n=n)
    from scipy.special import stdtr, stdtrit

    error = statistics.stdev(contrasts) / math.sqrt(n)
    half = float(stdtrit(n - 1, 0.5 + confidence / 2)) * error
    # By the lower tail: 1 less the upper one would round a small p-value to 0.
    p_value = 2 * float(stdtr(n - 1, -abs(mean / error)))
    return Estimate(value=mean, low=mean - half, high=mean + half, p_value=p_value, n=n)


def _per_block(contrast: Contrast, values: Mapping[str, Mapping[int, float]]) -> list[float]:
    # An arm of weight 0 must not cost the blocks in which it has no run.
    weights = {arm: weight for arm, weight in contrast.weights.items() if weight}
    assert weights, contrast
    runs = [values.get(arm, {}) for arm in weights]
    seeds = sorted(set(runs[0]).intersection(*runs[1:]))
    rows = [[run[seed] for run in runs] for seed in seeds]
    return [
        math.fsum(weight * value for weight, value in zip(weights.values(), row, strict=True))
        for row in rows
        if all(map(math.isfinite, row))
    ]


def with_holm(estimates: Sequence[Estimate]) -> tuple[Estimate, ...]:
    """Returns the estimates with `p_holm`, adjusted for all of them that have a p-value."""
    adjusted = iter(holm([each.p_value for each in estimates if each.p_value is not None]))
    return tuple(
        each if each.p_value is None else each.model_copy(update={"p_holm": next(adjusted)})
        for each in estimates
    )
