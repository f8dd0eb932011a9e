"""One configuration that stands for a search space, to measure with before any is proposed."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tune_speed.study.parameter import Parameter, Scalar
from tune_speed.study.points import read_point
from tune_speed.study.space import Params, SearchSpace


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
    middle = math.sqrt(parameter.low * parameter.high)
    return middle if values is None else min(values, key=lambda value: abs(float(value) - middle))
