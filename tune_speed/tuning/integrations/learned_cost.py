"""How long a run takes, learned from runs alone: where nobody can say the steps beforehand.

Bayesian linear regression of the logarithm of a run's time on the configuration,

    ln T = μ + Σ_i β_i x_i + ε,    β_i ~ N(0, 1²),   μ ~ N(mean ln T, 3²),   ε ~ N(0, 0.15²),

with x_i = ln of a value above 0 (so that time may grow as a power of it), a value's place in its
range where that reaches 0 or below, and an indicator for each choice. What is not part of a
configuration counts as 0. Source: Gelman et al., Bayesian Data Analysis, section 14.8.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tune_speed.study.parameter import Parameter
from tune_speed.tuning.policy.base import Cost
from tune_speed.tuning.policy.curve import FloatArray

LEVEL_SD, FACTOR_SD, REST_SD = 3.0, 1.0, 0.15
LEAST_RUNS = 3
"""Runs that are needed before any cost is predicted."""


class LearnedCost:
    """From a configuration to its cost, after runs that went to their ends."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        """Begins without runs."""
        self._parameters = parameters
        self._rows: list[FloatArray] = []
        self._logs: list[float] = []
        self._fit: tuple[FloatArray, FloatArray, float] | None = None

    def learn(self, params: Mapping[str, Any], train_s: float) -> None:
        """Takes a run's seconds on the training clock; 0 says nothing."""
        if train_s > 0:
            self._rows.append(self._row(params))
            self._logs.append(math.log(train_s))
            self._fit = None

    def __call__(self, params: Mapping[str, Any]) -> Cost | None:
        """Returns the likely cost, and as a bound what two standard deviations less would be."""
        if len(self._rows) < LEAST_RUNS:
            return None
        self._fit = self._fit or self._fitted()
        row, (weights, covariance, level) = self._row(params), self._fit
        sd = math.sqrt(float(row @ covariance @ row) + REST_SD**2)
        likely = level + float(row @ weights)
        return Cost(math.exp(likely - 2 * sd), guess_s=math.exp(likely))

    def _fitted(self) -> tuple[FloatArray, FloatArray, float]:
        rows, logs = np.array(self._rows), np.array(self._logs)
        level = float(logs.mean())
        precision = np.full(rows.shape[1], FACTOR_SD**-2)
        precision[0] = LEVEL_SD**-2
        known = np.diag(precision) + rows.T @ rows / REST_SD**2
        covariance = np.asarray(np.linalg.inv(known), dtype=float)
        weights: FloatArray = covariance @ rows.T @ (logs - level) / REST_SD**2
        return weights, covariance, level

    def _row(self, params: Mapping[str, Any]) -> FloatArray:
        row = [1.0]
        for parameter in self._parameters:
            value = params.get(parameter.name)
            if parameter.kind == "categorical":
                chosen = parameter.position(value) if parameter.name in params else None
                row += [float(position == chosen) for position in range(len(parameter.choices))]
            else:
                row.append(0.0 if value is None else _place(parameter, float(value)))
        return np.array(row)


def _place(parameter: Parameter, value: float) -> float:
    assert parameter.low is not None and parameter.high is not None
    if parameter.low > 0:
        return math.log(value / math.sqrt(parameter.low * parameter.high))
    return (value - parameter.low) / (parameter.high - parameter.low or 1.0)
