"""Which changes are run together, and in which order."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from tune_speed.core.errors import ConfigError, Problem
from tune_speed.experiments.ablation.axes import AND, Axis, overwritten

Design = Literal["one-at-a-time", "leave-one-out", "factorial", "stacking", "cumulative"]
BASE = "base"
"""Name of the arm that changes nothing."""
# Of a factorial: six axes of one level each. Every seed runs all of them.
MOST_ARMS = 64
ONE_LEVEL_DESIGNS = ("leave-one-out", "stacking", "cumulative")
"""Designs in which an axis is on or off."""


class Arm(NamedTuple):
    """One configuration that is run with every seed."""

    name: str
    """`base`, or the labels of its levels joined by ` + `."""
    levels: tuple[int, ...]
    """For each axis 0 for the base's setting, or j for its level j - 1."""


def arms_of(axes: Sequence[Axis], design: Design) -> tuple[Arm, ...]:
    """Returns the arms of a design: the base first, those with fewer changes before the others.

    - `one-at-a-time`: the base and each level alone.
    - `leave-one-out`: the base, all together, and all without one.
    - `factorial`: all combinations.
    - `stacking`: the base, each alone, and all together.
    - `cumulative`: the base, the first, the first and the second, and so on.

    Raises: ConfigError where a factorial has more than 64 arms, where `leave-one-out`, `stacking`
        or `cumulative` has fewer than two axes or an axis with several levels, or where levels
        that are run together set the same field (only in `cumulative` may a later axis do so).
    """
    assert axes
    problems = [*_shape_problems(axes, design), *_clash_problems(axes, design)]
    if problems:
        raise ConfigError(problems=tuple(problems))
    found = []
    for levels in dict.fromkeys(_combinations(axes, design)):
        labels = [axis.levels[j - 1].label for axis, j in zip(axes, levels, strict=True) if j]
        found.append(Arm(AND.join(labels) or BASE, levels))
    return tuple(found)


def _shape_problems(axes: Sequence[Axis], design: Design) -> list[Problem]:
    num_arms = math.prod(len(axis.levels) + 1 for axis in axes)
    if design == "factorial" and num_arms > MOST_ARMS:
        must, given = f"a factorial must have at most {MOST_ARMS} arms", f"{num_arms}"
        hint = "Try `one-at-a-time` or `stacking`, or leave axes or levels out."
        return [_problem(must, given, hint)]
    if design in ONE_LEVEL_DESIGNS and len(axes) < 2:
        return [_problem(f"`{design}` must have at least two axes", "one", "Try `one-at-a-time`.")]
    if design in ONE_LEVEL_DESIGNS:
        several = [axis for axis in axes if len(axis.levels) > 1]
        must, hint = f"`{design}` must have one level on each axis", "Try `factorial`."
        return [_problem(must, f"{len(a.levels)} on `{a.name}`", hint) for a in several]
    return []


def _clash_problems(axes: Sequence[Axis], design: Design) -> list[Problem]:
    """Returns a problem for each path that levels of different axes overwrite."""
    # An arm with such levels would not be what its name says.
    # With `cumulative` a step may replace an earlier one: constant rate, drops, one-cycle.
    if design in ("one-at-a-time", "cumulative"):
        return []
    paths = [
        list(dict.fromkeys(path for level in axis.levels for path, _ in level.settings))
        for axis in axes
    ]
    clashes = {
        path
        for first, second in itertools.combinations(paths, 2)
        for path in first
        if any(overwritten([path, later]) for later in second)
    }
    must = f"levels that `{design}` runs together must not set the same field"
    hint = "Make them levels of one axis, put the wider field first, or try `one-at-a-time`."
    return [_problem(must, f"`{path}` on two axes", hint) for path in sorted(clashes)]


def _problem(must: str, given: str, hint: str) -> Problem:
    return Problem(path="ablate.design", must=must, given=given, hint=hint)


def _combinations(axes: Sequence[Axis], design: Design) -> list[tuple[int, ...]]:
    num = len(axes)
    alone = [
        tuple(level if i == j else 0 for j in range(num))
        for i, axis in enumerate(axes)
        for level in range(1, len(axis.levels) + 1)
    ]
    none, full = (0,) * num, (1,) * num
    if design == "one-at-a-time":
        return [none, *alone]
    if design == "stacking":
        return [none, *alone, full]
    if design == "cumulative":
        return [(1,) * count + (0,) * (num - count) for count in range(num + 1)]
    if design == "leave-one-out":
        without = [tuple(int(i != left_out) for i in range(num)) for left_out in range(num)]
        return [none, *without, full]
    assert design == "factorial", design
    product = itertools.product(*(range(len(axis.levels) + 1) for axis in axes))

    def by_changes(levels: tuple[int, ...]) -> tuple[Any, ...]:
        unchanged = [level == 0 for level in levels]
        return -sum(unchanged), unchanged, levels

    return sorted(product, key=by_changes)


def settings_of(arm: Arm, axes: Sequence[Axis]) -> tuple[tuple[str, Any], ...]:
    """Returns the fields that an arm sets, path and value, in the order in which to set them."""
    return tuple(
        setting
        for axis, level in zip(axes, arm.levels, strict=True)
        if level
        for setting in axis.levels[level - 1].settings
    )


def turns(arms: Sequence[str], *, block: int) -> tuple[str, ...]:
    """Returns the order in which a block runs the arms, so that none is always early or late.

    Of k arms, block 2i runs 0, 1, k-1, 2, k-2, ... shifted by i (mod k), and block 2i + 1 the same
    backwards. After each pair of blocks all arms have had the same mean position; after 2k blocks
    each has had each position twice, and each has come right after each other one twice.

    Source: Williams 1949, Experimental designs balanced for the estimation of residual effects of
    treatments; there backwards only for an odd k, and not in pairs.
    """
    num = len(arms)
    assert num == len(set(arms)), arms
    zigzag = [(index + 1) // 2 if index % 2 else -(index // 2) for index in range(num)]
    order = tuple(arms[(step + block // 2) % num] for step in zigzag)
    # Backwards in each second block, for an even k too: each pair evens out the arms' positions.
    return order[::-1] if block % 2 else order
