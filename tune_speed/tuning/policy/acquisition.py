"""The acquisition function of the sampler `gain`, and its maximisation.

Where the length is part of the configuration, its cost c is known before it runs; only whether it
meets the target is uncertain. And a run that missed says by how much, at every moment of its
training clock. So the model is one of the metric, not of the censored time: a Gaussian process over
configurations of the distance y to the target (see `curve_table`), with posterior P(y ≥ 0).

    fixed length:  gain = P(y(1) ≥ θ) · log(L / c) / c^κ
    anytime:       gain = Σ_k P(y(τ_k) ≥ θ) · w_k,    w_k = log(τ_(k−1) / τ_k)

| symbol | meaning                                                                           |
|--------|-----------------------------------------------------------------------------------|
| L      | the leader's time to target; before there is one, twice the longest known cost     |
| τ_k    | fractions of the leader's time (before there is one, of the longest run)           |
| θ      | 0; before any run is near the target, a little beyond the best so far, since       |
|        | chances that are all 0 do not rank                                                  |
| κ      | weight of the cost                                                                  |

Where a cheaper run would say enough about the chosen one, it goes first: a probe. The chance that a
probe shows a costly run to be p' likely to meet the target, with p its chance now, is worth
E[(p' − p)⁺] / p.

A second Gaussian process predicts the memory constraint, once something was infeasible. Candidates
are drawn evenly and around the best trials, then refined locally. Running trials are imputed with
their posterior means (constant liar), which keeps concurrent proposals apart.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from tune_speed.tuning.policy.curve import FloatArray
from tune_speed.tuning.policy.curve_table import Expected
from tune_speed.tuning.policy.encoding import BoolArray, Encoder
from tune_speed.tuning.policy.gaussian_process import GaussianProcess, Scales, fit_scales

NUM_LEVELS = 8
"""Values of a parameter that probes try."""
CHEAPER = 0.7
"""Share of the costly run's cost that a probe may take."""
# Correlations are clipped to it: some uncertainty always remains.
MAX_CORRELATION = 0.999
# Quantiles of z. A quadrature for smooth functions does worse: p' may be a step.
LEVELS = (np.arange(64) + 0.5) / 64


class Posterior(NamedTuple):
    """What the model expects of a run."""

    mean: float
    sd: float
    noise_sd: float
    threshold: float
    """θ"""


def neighbours(units: FloatArray) -> FloatArray:
    """Returns units (8 · P, P) that differ from `units` (P,) in one parameter each."""
    levels = (np.arange(NUM_LEVELS) + 0.5) / NUM_LEVELS
    moved = np.tile(units, (len(units), NUM_LEVELS, 1))
    for i in range(len(units)):
        moved[i, :, i] = levels
    return moved.reshape(-1, len(units))


def expected_rise(run: Posterior, correlations: FloatArray) -> FloatArray:
    """Returns E[(p' − p)⁺] / p for runs of these correlations ρ (M,) with it: (M,)."""
    known = np.clip(np.abs(correlations), 0.0, MAX_CORRELATION)[:, None] * run.sd
    left = np.sqrt(run.sd**2 - known**2 + run.noise_sd**2)
    above, spread = run.mean - run.threshold, float(np.hypot(run.sd, run.noise_sd))
    before = float(ndtr(above / spread))
    # p' > p where z exceeds this, which may be far in the tail: z is drawn from beyond it alone.
    is_known = known > 0
    least = np.where(is_known, above * (left / spread - 1) / np.where(is_known, known, 1.0), 0.0)
    share = ndtr(-least)
    after = ndtr((above - known * ndtri(share * LEVELS)) / left)
    gain = share * np.maximum(after - before, 0.0)
    rise: FloatArray = gain.mean(axis=1) / max(before, 1e-9)
    return rise


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


class Objective(NamedTuple):
    """What the acquisition function measures gains against."""

    best_s: float
    """Time to be beaten [s]: L."""
    has_leader: bool
    at_end: bool
    """Whether a run counts by the metric at its own end, at a cost known beforehand."""
    fractions: tuple[float, ...]
    """τ (K,), falling from 1; unused where runs count by their ends."""


class Candidate(NamedTuple):
    """A configuration and what the model expects of it."""

    units: FloatArray
    params: dict[str, Any]
    expected: Expected
    """Of its distance at the end of interest."""
    cost_s: float
    """NaN if not known."""
    probes: "Candidate | None" = None
    """The costlier one that it is to inform about; None: it is no probe."""


@dataclass(frozen=True)
class AcquisitionSettings:
    """Settings whose values a benchmark decided."""

    num_candidates: int = 256
    """Half of them drawn evenly, half around the best trials."""
    fit_points: int = 64
    """Trials to which the hyperparameters are fitted, at most."""
    max_points: int = 300
    """Trials that the model is conditioned on, at most."""
    cost_power: float = 0.5
    """κ, once there is a leader."""
    early_cost_power: float = 0.3
    """κ before."""
    margin: float = 0.5
    """How far beyond the best so far θ lies."""
    cost_feature: bool = True
    """Whether the cost is an input of the model, next to the configuration."""
    probe: float = 1.0
    """Value over cost, relative to the costly run, from which a probe goes first; 0: none does."""
    luck: float = 1.0
    """Share of the noise that counts: a run of the same configuration may be lucky."""


Allowed = Callable[[dict[str, Any]], float | None]
"""From a configuration to its cost [s] (NaN: not known), or None if it is not to be tried."""


def best_candidate(
    encoder: Encoder,
    evidence: Evidence,
    *,
    running: tuple[FloatArray, FloatArray],
    objective: Objective,
    allowed: Allowed,
    rng: np.random.Generator,
    settings: AcquisitionSettings,
) -> Candidate | None:
    """Returns the maximum of the acquisition function, or a probe of it; None if none is allowed.

    The evidence are finished trials; of running ones there are units (R, P) and likely costs (R,)
    [s]. Gains are measured against the objective.
    """
    search = _Search(encoder, evidence, running, objective, allowed, rng, settings)
    order = np.argsort(-evidence.ranks, kind="stable")
    centers = evidence.units[order[:5]]
    half = settings.num_candidates // 2
    around = centers[rng.integers(len(centers), size=half)]
    scale = 10 ** rng.uniform(-2.2, -0.5, size=(half, 1))
    search.add(rng.random((half, len(encoder.parameters))))
    search.add(_mutated(encoder, around, scale, rng))
    for narrow in (0.08, 0.02):
        if search.best:
            centers = np.array([candidate.units for _, candidate in search.best[:4]])
            search.add(_mutated(encoder, np.repeat(centers, 12, axis=0), narrow, rng))
    if not search.best:
        return None
    best = search.best[0][1]
    return (objective.at_end and search.probe(best)) or best


class _Search:
    """The acquisition function over models that are fitted to the evidence for each proposal."""

    def __init__(
        self,
        encoder: Encoder,
        evidence: Evidence,
        running: tuple[FloatArray, FloatArray],
        objective: Objective,
        allowed: Allowed,
        rng: np.random.Generator,
        settings: AcquisitionSettings,
    ) -> None:
        self._encoder, self._objective, self._settings = encoder, objective, settings
        self._allowed = allowed
        self.best: list[tuple[float, Candidate]] = []
        """The best candidates so far, with their gains."""
        known = evidence.costs[~np.isnan(evidence.costs)]
        self._usual_cost = float(np.median(known)) if len(known) else 1.0
        self._longest_cost = float(known.max()) if len(known) else 1.0
        self._model = self._of_distance(evidence, running, rng)
        self._memory = self._of_memory(evidence)

    def add(self, units: FloatArray) -> None:
        params = self._encoder.params(units)
        costs = [self._allowed(each) for each in params]
        rows = [row for row, cost in enumerate(costs) if cost is not None]
        if not rows:
            return
        cost_s = np.array([costs[row] for row in rows], dtype=float)
        gain, mean, sd = self._score(units[rows], cost_s)
        for i in np.argsort(-gain, kind="stable")[:6]:
            expected = Expected(float(mean[i]), float(sd[i]), self._threshold)
            candidate = Candidate(units[rows[i]], params[rows[i]], expected, float(cost_s[i]))
            self.best.append((float(gain[i]), candidate))
        self.best.sort(key=lambda scored: -scored[0])
        del self.best[6:]

    def probe(self, costly: Candidate) -> Candidate | None:
        """Returns the most informative cheaper run for its cost; None if it is not worth it."""
        units, least = neighbours(costly.units), self._settings.probe
        params = self._encoder.params(units)
        costs = np.array([self._allowed(each) or math.nan for each in params], dtype=float)
        rows = np.flatnonzero(costs < CHEAPER * costly.cost_s)
        if not least or not len(rows):
            return None
        worth = self._rise(units[rows], costs[rows], costly) * costly.cost_s / costs[rows]
        first = int(rows[int(worth.argmax())])
        if worth.max() < least:
            return None
        _, mean, sd = self._score(units[first : first + 1], costs[first : first + 1])
        expected = Expected(float(mean[0]), float(sd[0]), self._threshold)
        return Candidate(units[first], params[first], expected, float(costs[first]), probes=costly)

    def _score(
        self, units: FloatArray, costs: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Returns the gain of candidates, and mean and deviation of their distance: (M,) each."""
        points = self._points(units, costs)
        mean, sd = self._model.predict(points)
        # The run's own metric has to meet the target, and that includes its noise.
        sd = np.hypot(sd, self._settings.luck * self._model.noise_sd)
        chances = ndtr((mean - self._threshold) / sd[:, None])
        return self._gain(chances, costs) * self._fits(points), mean[:, 0], sd

    def _fits(self, points: FloatArray) -> FloatArray:
        if self._memory is None:
            return np.ones(len(points))
        room, room_sd = self._memory.predict(points)
        fits: FloatArray = ndtr(room / np.sqrt(room_sd**2 + 0.05))
        return fits

    def _rise(self, units: FloatArray, costs: FloatArray, costly: Candidate) -> FloatArray:
        """Returns `expected_rise` of a costly run by each candidate: (M,)."""
        there = self._points(costly.units[None, :], np.array([costly.cost_s]))
        mean, sd = self._model.predict(there)
        noise_sd = self._settings.luck * self._model.noise_sd
        run = Posterior(float(mean[0, 0]), float(sd[0]), noise_sd, self._threshold)
        points = self._points(units, costs)
        # A run that does not fit into memory shows no metric.
        return expected_rise(run, self._model.correlations(points, there)) * self._fits(points)

    def _gain(self, chances: FloatArray, costs: FloatArray) -> FloatArray:
        objective, settings = self._objective, self._settings
        if objective.at_end:
            cost = np.where(np.isnan(costs), self._usual_cost, costs)
            power = settings.cost_power if objective.has_leader else settings.early_cost_power
            log_ratio = np.log(np.maximum(objective.best_s / cost, 1.001))
            gain: FloatArray = chances[:, 0] * log_ratio / cost**power
            return gain
        falling = np.minimum.accumulate(chances, axis=1)
        tau = np.array(objective.fractions)
        weights = np.log(np.append(1.0, tau[:-1]) / tau)
        # By the formula 0: equalling the leader's time gains nothing. Without a leader the time
        # to be beaten is twice the longest run's, so that a hit at its end gains log 2.
        weights[0] = 0.05 if objective.has_leader else math.log(2.0)
        return np.asarray(falling @ weights)

    def _points(self, units: FloatArray, costs: FloatArray) -> FloatArray:
        points = self._encoder.points(units)
        if not (self._objective.at_end and self._settings.cost_feature):
            return points
        cost = np.where(np.isnan(costs), self._usual_cost, costs)
        # A factor of 20 in cost counts as much as a whole range.
        column = 1 + np.log(np.maximum(cost, 1e-9) / self._longest_cost) / 3
        return np.column_stack([points, column])

    def _of_distance(
        self, evidence: Evidence, running: tuple[FloatArray, FloatArray], rng: np.random.Generator
    ) -> GaussianProcess:
        rows = np.flatnonzero(evidence.fits)
        first = evidence.distances[:, 0]
        rows = _some(rows, first, self._settings.max_points, rng)
        points = self._points(evidence.units[rows], evidence.costs[rows])
        values, variances = evidence.distances[rows], evidence.variances[rows]
        self._threshold = min(0.0, float(values[:, 0].max()) + self._settings.margin)
        few = _some(np.arange(len(rows)), values[:, 0], self._settings.fit_points, rng)
        scales = fit_scales(points[few], values[few, 0], variances[few])
        model = GaussianProcess(points, values, variances, scales)
        if not len(running[0]):
            return model
        there = self._points(*running)
        mean, _ = model.predict(there)
        return GaussianProcess(
            np.concatenate([points, there]),
            np.concatenate([values, mean]),
            np.concatenate([variances, np.zeros(len(there))]),
            scales,
        )

    def _of_memory(self, evidence: Evidence) -> GaussianProcess | None:
        if evidence.fits.all():
            return None
        rows = np.arange(len(evidence.fits))[-64:]
        points = self._points(evidence.units[rows], evidence.costs[rows])
        values = np.where(evidence.fits[rows], 1.0, -1.0)
        none = np.zeros(len(rows))
        if evidence.fits[rows].any() and not evidence.fits[rows].all():
            scales = fit_scales(points, values, none)
        else:  # Constant values say nothing of the scales.
            scales = Scales(0.0, math.log(0.1), np.full(points.shape[1], math.log(0.6)))
        return GaussianProcess(points, values, none, scales)


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


def _mutated(
    encoder: Encoder, units: FloatArray, scale: FloatArray | float, rng: np.random.Generator
) -> FloatArray:
    """Mutates about half of the units: numbers a little, choices to a neighbour or anywhere."""
    counts = np.array([len(parameter.choices) for parameter in encoder.parameters])
    shape = units.shape
    moves = rng.random(shape) < (0.5 if shape[1] > 2 else 1.0)
    shifted = units + rng.normal(size=shape) * scale
    side = np.where(rng.random(shape) < 0.5, -1.0, 1.0) / np.maximum(counts, 1)
    kind, anywhere = rng.random(shape), rng.random(shape)
    jumped = np.where(kind < 0.5 + np.maximum(scale, 0.1), anywhere, units)
    stepped = np.where((kind < 0.5) & (counts > 2), units + side, jumped)
    moved = np.where(counts > 0, stepped, shifted)
    return np.clip(np.where(moves, moved, units), 0.0, 1.0 - 1e-9)
