"""How long an optimizer step takes of a kind that never ran, learned from the kinds that did.

A kind of step is a batch and a key: the values of all that changes its speed (see `cost`). With t
the step time and n the samples of a step,

    log t = a + b · log n + Σ_j w_j(k_j) + ε

| symbol | meaning                                        | prior        |
|--------|------------------------------------------------|--------------|
| a      | level                                          | N(ā, 3²)     |
| b      | how t grows with the samples                   | N(0.8, 0.3²) |
| w_j(k) | factor of the key's j-th value being k         | N(0, 0.4²)   |
| ε      | what is not the product of such factors        | N(0, 0.15²)  |

with ā the mean of log t − 0.8 · log n. The prior of b says that twice the batch takes nearly twice
as long; that of w, that one value more or less changes a step by half or by a half more. Source:
Bayesian linear regression, Bishop 2006, section 3.3.1.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tune_speed.tuning.policy.curve import FloatArray

Key = tuple[Any, ...]
GROWTH, GROWTH_SD = 0.8, 0.3
LEVEL_SD = 3.0
FACTOR_SD = 0.4
REST_SD = 0.15


class StepTimes:
    """The regression over the kinds of steps that ran."""

    def __init__(self, seen: Mapping[Key, tuple[float, int]]) -> None:
        """Takes step time [s] and samples of each key; at least one."""
        self._columns: dict[tuple[int, Any], int] = {}
        for key in seen:
            for place in enumerate(key):
                self._columns.setdefault(place, 2 + len(self._columns))
        times_s, samples = np.array(list(seen.values()), dtype=float).T
        rest = np.log(times_s) - GROWTH * np.log(samples)
        self._level = float(rest.mean())
        rows = np.array([self._row(key, n) for key, n in zip(seen, samples, strict=True)])
        self._weights = self._fit(rows, rest - self._level)

    def __call__(self, key: Key, samples: int) -> float:
        """Returns the step time of a key that is most likely [s]."""
        beyond = float(self._row(key, samples) @ self._weights)
        return math.exp(self._level + GROWTH * math.log(samples) + beyond)

    def _row(self, key: Key, samples: float) -> FloatArray:
        row = np.zeros(2 + len(self._columns))
        row[0], row[1] = 1.0, math.log(samples)
        for place in enumerate(key):
            if place in self._columns:
                row[self._columns[place]] = 1.0
        return row

    @staticmethod
    def _fit(rows: FloatArray, values: FloatArray) -> FloatArray:
        precision = np.full(rows.shape[1], FACTOR_SD**-2)
        precision[:2] = LEVEL_SD**-2, GROWTH_SD**-2
        precisions = np.diag(precision) + rows.T @ rows / REST_SD**2
        return np.asarray(np.linalg.solve(precisions, rows.T @ values / REST_SD**2), dtype=float)
