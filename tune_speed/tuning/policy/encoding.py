"""Configurations as points of the unit cube, for models that measure distances between them.

A configuration has two encodings. Its *units* (P,) have one number in [0, 1] for every parameter,
active or not; uniform units are configurations as a random sampler draws them. Its *point* (D,) is
what distances are measured between:

| parameter                       | coordinates of the point                                  |
| ------------------------------- | --------------------------------------------------------- |
| range                           | one in [0, 1], over the logarithm if `log` says so        |
| `choices` of at least 3 numbers | one in [0, 1], over the logarithm if they span a factor 4 |
| other `choices`                 | one a choice, 1/√2 where it is taken: two lie 1 apart     |

An inactive parameter lies in the middle of its range.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import qmc

from tune_speed.study.parameter import Parameter, Scalar, is_number
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.base import ParamsKey, Parts
from tune_speed.tuning.policy.curve import FloatArray

BoolArray = npt.NDArray[np.bool_]

# Numbers that span this factor are spaced by their logarithm: 64, 128, 256.
LOG_FACTOR = 4.0
UNUSED = 0.5
# Points of the Sobol sequence; proposals past them are drawn at random.
NUM_QUASI = 4096
# Less than a single run counts, so that a dozen runs tell networks of other speeds apart.
RIDGE = 0.1


class Encoder:
    """Translates the configurations of one search space."""

    def __init__(self, space: SearchSpace) -> None:
        self.parameters = space.parameters
        self._axes = [
            _Choices(parameter) if parameter.kind == "categorical" else _Range(parameter)
            for parameter in space.parameters
        ]
        position = {parameter.name: i for i, parameter in enumerate(space.parameters)}
        self._conditions = [
            [(position[name], self._axes[position[name]].index(v)) for name, v in c.items()]
            for c in (parameter.condition for parameter in space.parameters)
        ]
        self.num_dims = sum(axis.width for axis in self._axes)
        """Coordinates of a point."""

    def units(self, params: Mapping[str, Any]) -> FloatArray:
        """Returns the units (P,) of a configuration; 0.5 where a parameter is inactive."""
        units = np.full(len(self._axes), UNUSED)
        for i, (parameter, axis) in enumerate(zip(self.parameters, self._axes, strict=True)):
            if parameter.name in params:
                units[i] = axis.unit(params[parameter.name])
        return units

    def key(self, params: Mapping[str, Any]) -> ParamsKey:
        """Returns a configuration as a key of a dict; choices are known by their positions."""
        axes = zip(self.parameters, self._axes, strict=True)
        return tuple((p.name, axis.key(params[p.name])) for p, axis in axes if p.name in params)

    def params(self, units: FloatArray) -> list[dict[str, Any]]:
        """Returns the configurations at units (N, P)."""
        snapped = [axis.snap(units[:, i]) for i, axis in enumerate(self._axes)]
        active = [column.tolist() for column in self._active(snapped)]
        values = [axis.values(column) for axis, column in zip(self._axes, snapped, strict=True)]
        names = [parameter.name for parameter in self.parameters]
        columns = list(zip(names, active, values, strict=True))
        return [
            {name: column[row] for name, here, column in columns if here[row]}
            for row in range(len(units))
        ]

    def points(self, units: FloatArray) -> FloatArray:
        """Returns the points (N, D) of the configurations at units (N, P)."""
        snapped = [axis.snap(units[:, i]) for i, axis in enumerate(self._axes)]
        columns = []
        for axis, values, active in zip(self._axes, snapped, self._active(snapped), strict=True):
            columns.append(np.where(active[:, None], axis.coordinates(values), UNUSED))
        return np.concatenate(columns, axis=1) if columns else np.zeros((len(units), 0))

    def choice_slopes(self, units: FloatArray, values: FloatArray) -> FloatArray:
        """Returns what each choice without an order adds to values (N,) at units (N, P): (D,).

        By ridge regression on all coordinates of the points; 0 for those of other parameters.
        """
        widths = [axis.width for axis in self._axes]
        is_choice = np.repeat([width > 1 for width in widths], widths).astype(bool)
        if not len(units) or not is_choice.any():
            return np.zeros(self.num_dims)
        points = self.points(units)
        points -= points.mean(axis=0)
        squares = points.T @ points + RIDGE * np.eye(self.num_dims)
        slopes = np.linalg.solve(squares, points.T @ (values - values.mean()))
        return np.where(is_choice, slopes, 0.0)

    def _active(self, snapped: Sequence[FloatArray]) -> list[BoolArray]:
        active: list[BoolArray] = []
        for needs, values in zip(self._conditions, snapped, strict=True):
            here = np.ones(len(values), dtype=bool)
            for position, index in needs:
                here &= active[position] & (snapped[position] == index)
            active.append(here)
        return active


class _Range:
    """A parameter with a low and a high end; snapped values are fractions of the range."""

    width = 1

    def __init__(self, parameter: Parameter) -> None:
        assert parameter.low is not None and parameter.high is not None
        self._parameter, self._log = parameter, parameter.log
        self._low, self._high = float(parameter.low), float(parameter.high)
        self._step = parameter.step or (1.0 if parameter.kind == "int" else None)
        half = self._step / 2 if self._step else 0.0
        # All steps get equal shares of the range, those at its ends included, as in Optuna.
        self._from, self._to = self._scale(self._low - half), self._scale(self._high + half)

    def _scale(self, value: float) -> float:
        return math.log(value) if self._log else value

    def index(self, value: Scalar) -> float:
        raise AssertionError("conditions depend on choices only")

    def key(self, value: Any) -> Any:
        return value

    def unit(self, value: Any) -> float:
        if self._to == self._from:
            return UNUSED
        return (self._scale(float(value)) - self._from) / (self._to - self._from)

    def values(self, snapped: FloatArray) -> list[Any]:
        as_int = self._parameter.kind == "int"
        return [int(v) for v in snapped.tolist()] if as_int else snapped.tolist()

    def snap(self, units: FloatArray) -> FloatArray:
        scaled = self._from + np.clip(units, 0.0, 1.0) * (self._to - self._from)
        values: FloatArray = np.exp(scaled) if self._log else scaled
        if self._step is not None:
            values = self._low + np.round((values - self._low) / self._step) * self._step
        return np.clip(values, self._low, self._high)

    def coordinates(self, values: FloatArray) -> FloatArray:
        low, high = self._scale(self._low), self._scale(self._high)
        scaled = np.log(values) if self._log else values
        return ((scaled - low) / (high - low or 1.0))[:, None]


class _Choices:
    """A categorical; snapped values are positions among its choices."""

    def __init__(self, parameter: Parameter) -> None:
        self._choices, self._parameter = parameter.choices, parameter
        numbers = _spaced(parameter.choices)
        one_hot = np.eye(len(parameter.choices)) / math.sqrt(2)
        self._coordinates = one_hot if numbers is None else numbers[:, None]
        self.width = self._coordinates.shape[1]

    def index(self, value: Scalar) -> float:
        return float(self._parameter.position(value))

    key = index

    def unit(self, value: Any) -> float:
        return (self.index(value) + 0.5) / len(self._choices)

    def values(self, snapped: FloatArray) -> list[Any]:
        return [self._choices[int(position)] for position in snapped.tolist()]

    def snap(self, units: FloatArray) -> FloatArray:
        num = len(self._choices)
        return np.minimum(np.floor(np.clip(units, 0.0, 1.0) * num), num - 1)

    def coordinates(self, values: FloatArray) -> FloatArray:
        coordinates: FloatArray = self._coordinates[values.astype(int)]
        return coordinates


class EvenSpread:
    """A Sobol sequence over the units of a space, by the numbers of the proposals."""

    def __init__(self, encoder: Encoder, parts: Parts, *, seed: int) -> None:
        self._encoder, self._parts = encoder, parts
        # SciPy's Sobol refuses no dimensions at all.
        num_dims = len(encoder.parameters)
        sobol = qmc.Sobol(max(num_dims, 1), scramble=True, rng=np.random.default_rng([seed, 7]))
        self.sequence: FloatArray = sobol.random(NUM_QUASI)[:, :num_dims]
        """(N, P)"""

    def pool(self, number: int) -> list[dict[str, Any]]:
        """Returns the configurations of which a start takes the cheapest."""
        size = self._parts.start_pool
        return self._encoder.params(self.sequence[number * size : (number + 1) * size])

    def units(self, number: int, rng: np.random.Generator) -> Iterator[FloatArray]:
        """Yields units (N, P), the next of the sequence first, then more and more at random."""
        parts = self._parts
        # The start has used `start_pool` of the sequence for each of its proposals.
        number += parts.num_start * (parts.start_pool - 1)
        if number < NUM_QUASI:
            yield self.sequence[number : number + 1]
        for size in (8, 64, 1024):
            yield rng.random((size, self.sequence.shape[1]))

    def filled(self, point: Mapping[str, Any], number: int) -> dict[str, Any]:
        units = self.sequence[number % NUM_QUASI].copy()
        given = self._encoder.units(point)
        for i, parameter in enumerate(self._encoder.parameters):
            if parameter.name in point:
                units[i] = given[i]
        filled = self._encoder.params(units[None, :])[0]
        # Decoding a unit rounds; a point to evaluate is run exactly as it was given.
        return {**filled, **{name: point[name] for name in filled if name in point}}


def _spaced(choices: Sequence[Scalar]) -> FloatArray | None:
    """Returns where at least three numbers lie on a line, in [0, 1]; None for other choices."""
    # Between two choices there is nothing to interpolate.
    numbers = [float(c) for c in choices if is_number(c)]
    if len(numbers) != len(choices) or len(numbers) < 3:
        return None
    values = np.array(numbers)
    if values.min() > 0 and values.max() / values.min() >= LOG_FACTOR:
        values = np.log(values)
    spaced: FloatArray = (values - values.min()) / (values.max() - values.min() or 1.0)
    return spaced
