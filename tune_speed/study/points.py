"""Configurations that a study file names itself: `search.points_to_evaluate`.

A point may be partial. What it leaves out is the policy's choice, but for the choices on which a
named parameter depends: `optimizer.sgd.lr` without `optimizer` means sgd.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tune_speed.study.mistake import Mistake, near_miss, shown
from tune_speed.study.parameter import Parameter, Scalar
from tune_speed.study.space import Params, SearchSpace
from tune_speed.study.yaml import TreePath


def point_mistakes(
    space: SearchSpace, points: Sequence[Mapping[str, Any]], path: TreePath
) -> Iterator[Mistake]:
    """Yields every mistake of `points`, which lie at `path`."""
    known = {parameter.name: parameter for parameter in space.parameters}
    for position, point in enumerate(points):
        if not point:
            yield Mistake((*path, position), "a point must give a value to a parameter", "{}")
        for name, value in point.items():
            yield from _mistakes(known, point, name, value, (*path, position, name))


def _mistakes(
    known: Mapping[str, Parameter], point: Mapping[str, Any], name: str, value: Any, path: TreePath
) -> Iterator[Mistake]:
    if name not in known:
        hint = near_miss(name, known) or f"Searched are {', '.join(known) or 'none'}."
        yield Mistake(path, "must be searched in the recipe to be given here", f"`{name}`", hint)
        return
    try:
        known[name].read(value)
    except ValueError as error:
        # A mistake has a field of its own for what was given, so that it is not said twice.
        yield Mistake(path, str(error).partition(", but got ")[0], shown(value))
    whole = _with_conditions(known, point)
    needs = known[name].condition
    clash = {other: whole[other] for other, needed in needs.items() if whole[other] != needed}
    if clash:
        given = ", ".join(f"{other}: {shown(chosen)}" for other, chosen in clash.items())
        must = "must be left out unless " + ", ".join(f"{o} is {shown(needs[o])}" for o in clash)
        yield Mistake(path, must, given)


def _with_conditions(known: Mapping[str, Parameter], point: Mapping[str, Any]) -> Params:
    """Returns `point` and the choices that its parameters depend on; what it gives itself holds."""
    implied: Params = {}
    for name in point:
        for other, needed in known[name].condition.items() if name in known else ():
            implied.setdefault(other, needed)
    return {**implied, **point}


def read_point(space: SearchSpace, point: Mapping[str, Any]) -> Params:
    """Returns a point without mistakes in the space's types and order, implied choices included."""
    known = {parameter.name: parameter for parameter in space.parameters}
    whole = _with_conditions(known, point)
    return {name: p.read(whole[name]) for name, p in known.items() if name in whole}


def typical(space: SearchSpace, points: Sequence[Mapping[str, Any]]) -> Params:
    """Returns what is measured: the first point to evaluate, or the middle of the space.

    What the point leaves open is in the middle, too.
    """
    given = read_point(space, points[0]) if points else {}
    params: Params = {}
    for parameter in space.parameters:
        if parameter.is_active({**given, **params}):
            params[parameter.name] = given.get(parameter.name, _middle(parameter))
    return params


def _middle(parameter: Parameter) -> Scalar:
    """Returns the middle one of the values, on a log scale where they are searched on one."""
    values = parameter.values()
    if values is not None and not parameter.log:
        return values[len(values) // 2]
    assert parameter.low is not None and parameter.high is not None
    if not parameter.log:
        return (parameter.low + parameter.high) / 2
    # The middle of the logarithms.
    middle = math.sqrt(parameter.low * parameter.high)
    return middle if values is None else min(values, key=lambda value: abs(float(value) - middle))
