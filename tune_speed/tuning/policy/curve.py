"""Learning curves: of one run over its clock, of many on one axis, and forecasts of partial ones.

The metric m is taken as its signed distance to the target a, in units of two points, on a
logarithmic scale: near the target a point counts, far below it only the order of magnitude does.

    y = sign(m − a) · log(1 + |m − a| / 0.02)

The axis makes runs comparable: the share of the schedule where the length is fixed beforehand (a
one-cycle run says little at equal seconds), the training clock where it is not.

A run known up to u is extended to a later v by Bayesian linear regression over the runs that are
known at both,

    y(v) = α + β · y(u) + γ · (y(u) − y(u/2)) + ε,    ε ~ N(0, s²),
    α ~ N(0, s²),   β ~ N(1, s²/4),   γ ~ N(0.3 · log2(v/u), s²/4),

with s² the posterior mean scale under an inverse-gamma prior. Without data it predicts that a run
gains 0.3 of its last doubling's gain in every doubling to come. Source: Gelman et al., Bayesian
Data Analysis, section 14.8.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Mode = Literal["anytime", "fixed_length"]

# Two points of accuracy: about what a retuned recipe gains or loses.
GAP_UNIT = 0.02
PRIOR_RUNS = 4.0
"""Runs that the prior of the residual is worth."""
# Share of its last doubling's gain that a run gains in each doubling to come, before any was seen
# to its end.
PRIOR_SLOPE = 0.3
PRIOR_SPREAD = 0.6
"""Standard deviation of such a forecast over the whole axis."""


class Curve(NamedTuple):
    """The metric of one run over its training clock.

    A run without any evaluation ran out of memory; one whose metric is NaN diverged there.
    """

    train_s: FloatArray
    """(E,) seconds on the training clock at each evaluation, increasing."""
    metric: FloatArray
    """(E,) the target metric in [0, 1] at each evaluation."""

    @property
    def end_s(self) -> float:
        """Training clock of the last evaluation [s]; 0 without one."""
        return float(self.train_s[-1]) if len(self.train_s) else 0.0


NO_CURVE = Curve(np.empty(0), np.empty(0))


def crossing(curve: Curve, *, target: float, mode: Mode) -> int | None:
    """Returns the index of the evaluation at which the target held, or None if it never does.

    `fixed_length`: the last one, if it holds. `anytime`: the first of two consecutive ones.
    """
    holds = np.asarray(curve.metric) >= target
    if mode == "fixed_length":
        return len(holds) - 1 if len(holds) and holds[-1] else None
    pairs = np.flatnonzero(holds[:-1] & holds[1:])
    return int(pairs[0]) if len(pairs) else None


def distance(metric: npt.ArrayLike, target: float) -> FloatArray:
    units = (np.asarray(metric, dtype=float) - target) / GAP_UNIT
    y: FloatArray = np.sign(units) * np.log1p(np.abs(units))
    return y


def metric_at(y: npt.ArrayLike, target: float) -> FloatArray:
    """Returns the metric at a distance: the inverse of `distance`."""
    units = np.sign(y) * np.expm1(np.abs(y))
    metric: FloatArray = target + GAP_UNIT * units
    return metric


def gap(y: float) -> float:
    """Returns how far below the target a distance lies, in units of `GAP_UNIT`; 0 if above."""
    return math.expm1(max(-y, 0.0))


class CurveTable:
    """Distances (N, G) of N runs at G places of an axis that ends at 1; NaN: not seen there."""

    def __init__(self, places: FloatArray, rows: Sequence[FloatArray]) -> None:
        """Takes the axis' places (G,), rising to 1, and a row (G,) for each run."""
        self.places = places
        self._table = np.array(rows).reshape(len(rows), len(places))

    def __len__(self) -> int:
        return len(self._table)

    def extended(self, columns: list[int]) -> tuple[FloatArray, FloatArray]:
        """Returns the distances (N, K) at K places, and the scale (N,) of what was not seen.

        What was not seen is the forecast's mean; the scale is the largest of the forecasts', 0 for
        a run that was seen at all places. NaN for a run that was not seen at all.
        """
        values, scales = self._table[:, columns], np.zeros(len(self))
        last_seen = (~np.isnan(self._table)).sum(axis=1) - 1
        unseen = np.isnan(values)
        for start in np.unique(last_seen[unseen.any(axis=1) & (last_seen >= 0)]):
            rows = np.flatnonzero((last_seen == start) & unseen.any(axis=1))
            for k, column in enumerate(columns):
                if column > start:
                    fit, here = self._fit(int(start), column), self._features(int(start))[rows]
                    values[rows, k] = fit.mean(here)
                    scales[rows] = np.maximum(scales[rows], fit.scale(here))
        return values, scales

    def _features(self, column: int) -> FloatArray:
        """Returns (N, 3): one, the distance at a place, and what was gained since half of it."""
        here = self._table[:, column]
        before = self._table[:, self.column(self.places[column] / 2)]
        return np.stack([np.ones(len(self)), here, here - before], axis=1)

    def _fit(self, start: int, end: int) -> "_Fit":
        """Regresses the distances (N,) at a place on the features (N, 3) of an earlier one."""
        both = ~np.isnan(self._table[:, end]) & ~np.isnan(self._table[:, start])
        features, ends = self._features(start)[both], self._table[both, end]
        left = 1.0 - self.places[start] / self.places[end]
        doublings = float(np.log2(self.places[end] / self.places[start]))
        prior_mean = np.array([0.0, 1.0, PRIOR_SLOPE * doublings])
        prior_precision = np.diag([1.0, 4.0, 4.0])
        precision = prior_precision + features.T @ features
        moments = prior_precision @ prior_mean
        coefficients = np.linalg.solve(precision, moments + features.T @ ends)
        prior_sum = PRIOR_RUNS * (PRIOR_SPREAD * left + 0.05) ** 2
        residual = prior_sum + ends @ ends + prior_mean @ moments
        residual -= coefficients @ precision @ coefficients
        variance = max(float(residual) / (PRIOR_RUNS + len(ends)), 1e-6)
        return _Fit(coefficients, precision, variance)

    def column(self, at: float) -> int:
        return min(int(np.searchsorted(self.places, at - 1e-9)), len(self.places) - 1)

    def standing(
        self, *, at: float, mine: tuple[float, float], running: Sequence[tuple[float, float]]
    ) -> tuple[int, int]:
        """Returns how many runs were seen at a place, and how many of them promise a nearer end.

        The promise is the forecast from that place. Runs that are not in the table, and `mine`, are
        given by their distances there and at half of it.
        """
        column = self.column(at)
        fit = self._fit(column, len(self.places) - 1)
        more = np.array([[1.0, y, y - before] for y, before in (mine, *running)])
        promises = fit.mean(np.concatenate([more, self._features(column)]))
        others = promises[1:][~np.isnan(promises[1:])]
        return len(others), int((others > promises[0]).sum())


def make_row(
    places: FloatArray, at: FloatArray, y: FloatArray, *, start: float, is_whole: bool
) -> FloatArray:
    """Returns a run's distances (G,): from `start` at 0 through `y` (E,) at the places `at` (E,).

    A whole run keeps its last value; one that was stopped is censored: NaN from there on.
    """
    if not len(at):
        return np.full(len(places), np.nan)
    row: FloatArray = np.interp(places, np.append(0.0, at), np.append(start, y))
    if not is_whole:
        row[places > at[-1] * (1 + 1e-9)] = np.nan
    return row


class _Fit(NamedTuple):
    coefficients: FloatArray
    """(3,)"""
    precision: FloatArray
    """(3, 3), of the coefficients, in units of 1/variance."""
    variance: float

    def mean(self, features: FloatArray) -> FloatArray:
        return features @ self.coefficients

    def scale(self, features: FloatArray) -> FloatArray:
        spread = (features.T * np.linalg.solve(self.precision, features.T)).sum(axis=0)
        scale: FloatArray = np.sqrt(self.variance * (1 + spread))
        return scale
