"""Whether the best configurations lie at the end of a range: better ones may lie beyond it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tune_speed.study.parameter import Parameter

NEAR = 0.02
"""Of a range's width (over the logarithm where it is searched so): so near is at its end."""
FEWEST = 3
"""Configurations there from which on it is said; they must be half of the best, too."""


def at_ends(parameters: Sequence[Parameter], best: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields in words each range at an end of which most of the best configurations lie."""
    for parameter in parameters:
        if parameter.kind == "categorical" or parameter.low == parameter.high:
            continue
        places = [_place(parameter, p[parameter.name]) for p in best if parameter.name in p]
        for end, word, value in ((0, "below", parameter.low), (1, "above", parameter.high)):
            count = sum(abs(place - end) <= NEAR for place in places)
            if count >= FEWEST and 2 * count >= len(places):
                of = f"{count} of the best {len(places)} at {value:g}"
                yield f"{parameter.name}, {of}: better ones may lie {word} that"


def _place(parameter: Parameter, value: float) -> float:
    """Returns where in its range `value` is: 0 at the low end, 1 at the high one."""
    assert parameter.low is not None and parameter.high is not None
    scale = math.log if parameter.log else float
    low, high = scale(parameter.low), scale(parameter.high)
    return (scale(value) - low) / (high - low)
