"""The nearest of some configurations, found in microseconds."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tune_speed.study.parameter import Parameter
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.curve import FloatArray

LOG_FACTOR = 4.0
"""Listed numbers that span this factor are spaced by their logarithm: 64, 128, 256."""
UNUSED = 0.5
"""Position of a parameter that plays no part: it then says nothing."""


class Nearest:
    """Finds the nearest of some configurations.

    Near is one that agrees in every choice among things that have no order, and, if there is such
    a one, in every listed number; of these, the one with the least Euclidean distance, each range
    having length 1 (over its logarithm where that is how it is searched).
    """

    def __init__(self, space: SearchSpace, configurations: Sequence[Mapping[str, Any]]) -> None:
        categorical = [p for p in space.parameters if p.kind == "categorical"]
        self._listed = [p.name for p in categorical if _is_numeric(p)]
        self._unordered = [p.name for p in categorical if not _is_numeric(p)]
        ordered = [p for p in space.parameters if p.kind != "categorical" or _is_numeric(p)]
        self._axes = [_axis(parameter) for parameter in ordered]
        self._keys = [self._key(params) for params in configurations]
        self._points = np.array([self._point(params) for params in configurations])
        self.cells = _grouped(self._keys)
        """Positions of the configurations that agree in every choice."""
        groups = _grouped([unordered for unordered, _ in self._keys])
        self._in_cell = {key: (where, self._points[where]) for key, where in self.cells.items()}
        self._in_group = {key: (where, self._points[where]) for key, where in groups.items()}

    def __call__(self, params: Mapping[str, Any]) -> int:
        """Returns the position of the nearest configuration, of equal ones the first."""
        key, point = self._key(params), np.array(self._point(params))
        near = self._in_cell.get(key) or self._in_group.get(key[0])
        if near is None:
            return self._nearest_of_all(key[0], point)
        where, points = near
        return int(where[_squares(points - point).argmin()])

    def _nearest_of_all(self, unordered: tuple[Any, ...], point: FloatArray) -> int:
        """Returns the nearest where a choice was never made: each that differs counts as 1."""
        differing = [
            sum(a != b for a, b in zip(key, unordered, strict=True)) for key, _ in self._keys
        ]
        return int((_squares(self._points - point) + np.array(differing)).argmin())

    def _key(self, params: Mapping[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        unordered = tuple(params.get(name) for name in self._unordered)
        return unordered, tuple(params.get(name) for name in self._listed)

    def _point(self, params: Mapping[str, Any]) -> list[float]:
        return [
            (scale(params[name]) - low) / width if name in params else UNUSED
            for name, scale, low, width in self._axes
        ]


def _squares(differences: FloatArray) -> FloatArray:
    """Returns squared lengths (N,) of differences (N, D)."""
    squares: FloatArray = np.einsum("nd,nd->n", differences, differences)
    return squares


def _grouped(keys: Sequence[Any]) -> dict[Any, Any]:
    """Returns the positions of each key."""
    groups: dict[Any, list[int]] = {}
    for position, key in enumerate(keys):
        groups.setdefault(key, []).append(position)
    return {key: np.array(positions) for key, positions in groups.items()}


def _is_numeric(parameter: Parameter) -> bool:
    return all(isinstance(c, int | float) and not isinstance(c, bool) for c in parameter.choices)


def _axis(parameter: Parameter) -> tuple[str, Callable[[float], float], float, float]:
    """Returns name, scale, least scaled value and width of a parameter whose values have order."""
    ends = [float(end) for end in parameter.ends() if isinstance(end, int | float)]
    low, high = min(ends), max(ends)
    spans = bool(parameter.choices) and low > 0 and high / low >= LOG_FACTOR
    scale: Callable[[float], float] = math.log if parameter.log or spans else float
    return parameter.name, scale, scale(low), scale(high) - scale(low) or 1.0
