"""What finished trials say of configurations: a Gaussian process of the distance to the target.

Runs that end far from the target tell the way to it, or nothing: where training diverges or hardly
begins, how far off a run ends says little of what is near, but bends the process up past what any
run can reach. So the worse half is drawn together,

    w(y) = y,  y ≥ m;      w(y) = m − u ln(1 + (m − y) / u),  y < m

with m the median of configurations, at most 0, and u a unit, if runs of others then foretell better
whether one comes as near the target as the better half, quarter and tenth do (logarithmic score).
Outputs are warped by Snelson et al. 2004 too; we differ in what decides on it.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from tune_speed.tuning.policy.curve import FloatArray
from tune_speed.tuning.policy.encoding import BoolArray, Encoder
from tune_speed.tuning.policy.gaussian_process import (
    GaussianProcess,
    Scales,
    fit_scales,
    with_repeats,
)
from tune_speed.tuning.policy.settings import AcquisitionSettings


class Evidence(NamedTuple):
    """Finished trials, in the order of their numbers."""

    units: FloatArray
    """(N, P), see `encoding`."""
    costs: FloatArray
    """(N,) seconds to the end, known before; NaN where not."""
    distances: FloatArray
    """(N, K) at the fractions of the axis that count, the first of them 1."""
    variances: FloatArray
    """(N,) of the distances, beyond the model's noise: where the end is a forecast."""
    ranks: FloatArray
    """(N,) how good a trial is to search around, larger is better."""
    fits: BoolArray
    """(N,) whether it had enough memory (feasible); if not, its distances mean nothing."""


class Model:
    """What finished trials say of configurations; fitted once for each set of them."""

    def __init__(
        self,
        encoder: Encoder,
        evidence: Evidence,
        *,
        has_cost: bool,
        settings: AcquisitionSettings,
        rng: np.random.Generator,
    ) -> None:
        """Takes evidence of which at least three trials fit; `has_cost`: costs tell runs apart."""
        self._encoder, self._has_cost = encoder, has_cost and settings.cost_feature
        known = evidence.costs[~np.isnan(evidence.costs)]
        self.usual_cost = float(np.median(known)) if len(known) else 1.0
        self._longest_cost = float(known.max()) if len(known) else 1.0
        # Clocks differ between runs of a configuration, which must be the same point.
        self._costs: dict[bytes, float] = {}
        for units, cost in zip(evidence.units, evidence.costs, strict=True):
            self._costs.setdefault(units.tobytes(), float(cost))
        rows = np.flatnonzero(evidence.fits)
        rows = _some(rows, evidence.distances[:, 0], settings.max_points, rng)
        points = self.points(evidence.units[rows], evidence.costs[rows])
        y, variances = evidence.distances[rows], evidence.variances[rows]
        self.threshold = min(0.0, float(y[:, 0].max()) + settings.margin)
        self.process = _fitted(points, y, variances, settings, rng)
        self._least_share, self._memory = settings.least_share, self._of_memory(evidence)

    def with_running(self, units: FloatArray, costs: FloatArray) -> GaussianProcess:
        """Returns the process with running trials (R, P) at their posterior means."""
        if not len(units):
            return self.process
        there = self.points(units, costs)
        mean, _ = self.process.predict(there)
        return self.process.with_more(there, mean, shares=_shares(mean[:, 0], self._least_share))

    def points(self, units: FloatArray, costs: FloatArray) -> FloatArray:
        """Returns the process' inputs (M, D) of configurations and what they cost [s]."""
        points = self._encoder.points(units)
        if not self._has_cost:
            return points
        costs = np.array(
            [self._costs.get(u.tobytes(), c) for u, c in zip(units, costs, strict=True)]
        )
        cost = np.where(np.isnan(costs), self.usual_cost, costs)
        # A factor of 20 in cost counts as much as a whole range.
        column = 1 + np.log(np.maximum(cost, 1e-9) / self._longest_cost) / 3
        return np.column_stack([points, column])

    def fits(self, points: FloatArray) -> FloatArray:
        """Returns the chances that runs have enough memory: (M,)."""
        if self._memory is None:
            return np.ones(len(points))
        room, room_sd = self._memory.predict(points)
        fits: FloatArray = ndtr(room / np.sqrt(room_sd**2 + 0.05))
        return fits

    def _of_memory(self, evidence: Evidence) -> GaussianProcess | None:
        if evidence.fits.all():
            return None
        rows = np.arange(len(evidence.fits))[-64:]
        points = self.points(evidence.units[rows], evidence.costs[rows])
        values = np.where(evidence.fits[rows], 1.0, -1.0)
        none = np.zeros(len(rows))
        if evidence.fits[rows].any() and not evidence.fits[rows].all():
            scales = fit_scales(points, values, none)
        else:  # Constant values say nothing of the scales.
            scales = Scales(0.0, math.log(0.1), np.full(points.shape[1], math.log(0.6)))
        return GaussianProcess(points, values, none, scales)


class _Observed(NamedTuple):
    points: FloatArray
    values: FloatArray
    variances: FloatArray
    shares: FloatArray

    def of(self, rows: npt.NDArray[np.int_]) -> "_Observed":
        return _Observed(*(each[rows] for each in self))

    def fitted(self, start: Scales | None = None) -> Scales:
        x, y, variances, shares = self
        return fit_scales(x, y[:, 0], variances, shares=shares, start=start)

    def process(self, scales: Scales) -> GaussianProcess:
        return GaussianProcess(*self[:3], scales, shares=self.shares)

    def foretold(self, scales: Scales) -> float:
        """Returns the logarithmic score of the chances that the others give each run, ≤ 0."""
        mean, sd = self.process(scales).leave_one_out()
        y, mean = self.values[:, 0], mean[:, 0]
        marks = np.quantile(y, [0.5, 0.75, 0.9])
        marks = np.minimum(marks, 0.0) if y.max() >= 0 else marks
        chances = np.clip(ndtr((mean[:, None] - marks) / sd[:, None]), 1e-4, 1 - 1e-4)
        return float(np.log(np.where(y[:, None] >= marks, chances, 1 - chances)).mean())


def _fitted(
    points: FloatArray,
    y: FloatArray,
    variances: FloatArray,
    settings: AcquisitionSettings,
    rng: np.random.Generator,
) -> GaussianProcess:
    few = _some(np.arange(len(points)), y[:, 0], settings.fit_points, rng)
    # Runs of one configuration foretell each other whatever becomes of the distances.
    once = np.unique(points, axis=0, return_index=True)[1]
    seen = _Observed(points, y, variances, _shares(y[:, 0], settings.least_share))
    scales = seen.of(few).fitted()
    if len(once) >= settings.drawn_from:
        below = min(float(np.median(y[once, 0])), 0.0)
        values, slopes = draw_together(y, below=below, unit=settings.far_unit)
        shares = _shares(y[:, 0], settings.least_share, slopes)
        drawn = _Observed(points, values, variances * slopes**2, shares)
        found = drawn.of(few).fitted(scales)
        some = _some(once, y[:, 0], settings.fit_points, rng)
        if drawn.of(some).foretold(found) > seen.of(some).foretold(scales):
            seen, scales = drawn, found
    return seen.process(with_repeats(scales, seen.values[:, 0], points, seen.shares))


def _shares(y: FloatArray, least: float, slopes: FloatArray | float = 1.0) -> FloatArray:
    # Of a spread of the metric, the logarithm far from the target shows little.
    return np.maximum((np.exp(-np.abs(y)) * slopes) ** 2, least)


def draw_together(
    distances: FloatArray, *, below: float, unit: float
) -> tuple[FloatArray, FloatArray]:
    """Returns w(y) of distances (N, K), with m = `below`, and w'(y) (N,) of the first column."""
    far = np.maximum(below - distances, 0.0) / unit
    return np.where(far > 0, below - unit * np.log1p(far), distances), 1 / (1 + far[:, 0])


def _some(
    rows: npt.NDArray[np.int_], values: FloatArray, limit: int, rng: np.random.Generator
) -> npt.NDArray[np.int_]:
    """Returns at most `limit` of `rows`: two thirds with the largest values, others at random."""
    if len(rows) <= limit:
        return rows
    by_value = rows[np.argsort(-values[rows], kind="stable")]
    num_best = 2 * limit // 3
    others = rng.choice(by_value[num_best:], size=limit - num_best, replace=False)
    return np.sort(np.concatenate([by_value[:num_best], others]))
