"""The sampler `gain`: the configuration from which the largest gain is to be expected.

Two things set time to target apart from what samplers usually look for. Where the length is part of
the configuration, its cost c is known before it runs; all that is uncertain is whether it meets the
target. And a run that missed says by how much, at every moment of its training clock. So the model
is one of the metric, not of the time: a Gaussian process over configurations of the distance y to
the target (see `curve_table`), from which P(y ≥ 0) follows.

    fixed length:  gain = P(y(1) ≥ θ) · log(L / c) / c^κ
    anytime:       gain = Σ_k P(y(τ_k) ≥ θ) · w_k,    w_k = log(τ_(k−1) / τ_k)

| symbol | meaning                                                                           |
|--------|-----------------------------------------------------------------------------------|
| L      | the leader's time to target; before there is one, twice the longest known cost     |
| τ_k    | fractions of the leader's time (before there is one, of the longest run)           |
| θ      | 0; before any run is near the target, a little beyond the best so far, since where |
|        | all chances are nil they do not rank                                                |
| κ      | how much a second counts: a gain is worth more where it comes at less              |

Where a cheaper run would tell enough about the one that is chosen, it goes first (see `probe`).

A second Gaussian process tells what fits into memory, once something did not. Candidates are drawn
evenly and around the best trials, and the best of them are moved a little. Trials that still run
count as if they had turned out as expected, which keeps concurrent ones apart.
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
from tune_speed.tuning.policy.encoding import Encoder
from tune_speed.tuning.policy.gaussian_process import GaussianProcess, Scales, fit_scales

NUM_LEVELS = 8
"""Values of a parameter that are looked at."""
CHEAPER = 0.7
"""Share of the dear run's cost that a look may take."""
MOST_TOLD = 0.999
"""Correlation that is taken for the largest: something always stays open."""
LEVELS = (np.arange(64) + 0.5) / 64
"""Quantiles at which z is taken. A quadrature for smooth functions does worse: p' may be a step."""


class Unsure(NamedTuple):
    """What is expected of a run."""

    mean: float
    """m"""
    sd: float
    """s"""
    luck_sd: float
    """n"""
    threshold: float
    """θ"""


def neighbours(units: FloatArray) -> FloatArray:
    """Returns units (8 · P, P) that differ from `units` (P,) in one parameter each."""
    levels = (np.arange(NUM_LEVELS) + 0.5) / NUM_LEVELS
    beside = np.tile(units, (len(units), NUM_LEVELS, 1))
    for i in range(len(units)):
        beside[i, :, i] = levels
    return beside.reshape(-1, len(units))


def expected_rise(run: Unsure, correlations: FloatArray) -> FloatArray:
    """Returns E[(p' − p)⁺] / p for runs of these correlations ρ (M,) with it: (M,)."""
    told = np.clip(np.abs(correlations), 0.0, MOST_TOLD)[:, None] * run.sd
    left = np.sqrt(run.sd**2 - told**2 + run.luck_sd**2)
    above, spread = run.mean - run.threshold, float(np.hypot(run.sd, run.luck_sd))
    before = float(ndtr(above / spread))
    # p' > p where z exceeds this, which may be far out: z is drawn from beyond it alone.
    is_told = told > 0
    least = np.where(is_told, above * (left / spread - 1) / np.where(is_told, told, 1.0), 0.0)
    share = ndtr(-least)
    after = ndtr((above - told * ndtri(share * LEVELS)) / left)
    gain = share * np.maximum(after - before, 0.0)
    rise: FloatArray = gain.mean(axis=1) / max(before, 1e-9)
    return rise


BoolArray = npt.NDArray[np.bool_]


class Evidence(NamedTuple):
    """Finished trials, in the order of their numbers."""

    units: FloatArray
    """(N, P), see `encoding`."""
    costs: FloatArray
    """(N,) seconds to the end, known before; NaN where not."""
    distances: FloatArray
    """(N, K) at the fractions of the axis that count, the first of them 1."""
    variances: FloatArray
    """(N,) of the distances, beyond what the model makes of noise: where the end was not seen."""
    ranks: FloatArray
    """(N,) how good a trial is to search around, larger is better."""
    fits: BoolArray
    """(N,) whether it had enough memory; if not, its distances mean nothing."""


class Objective(NamedTuple):
    """What a candidate is measured by."""

    best_s: float
    """Time to be beaten [s]: L."""
    has_leader: bool
    at_end: bool
    """Whether a run counts by where it stands at its own end, at a cost known beforehand."""
    fractions: tuple[float, ...]
    """τ (K,), falling from 1; of no meaning where runs count by their ends."""


class Candidate(NamedTuple):
    """The best candidate."""

    units: FloatArray
    params: dict[str, Any]
    expected: Expected
    """Of its distance at the end of interest."""
    cost_s: float
    """NaN if not known."""
    before: "Candidate | None" = None
    """The dearer one that this one is to tell about."""


@dataclass(frozen=True)
class GainSettings:
    """Figures that the benchmark decided."""

    num_candidates: int = 256
    """Half of them drawn evenly, half around the best trials."""
    fit_points: int = 64
    """Trials from which the model's scales are found, at most."""
    max_points: int = 300
    """Trials that the model holds, at most."""
    cost_power: float = 0.5
    """κ, once there is a leader."""
    early_cost_power: float = 0.3
    """κ before."""
    margin: float = 0.5
    """How far beyond the best so far θ lies."""
    cost_feature: bool = True
    """Whether the model sees the cost beside the configuration."""
    probe: float = 1.0
    """A cheaper run goes first where it tells so many times what it costs; 0: none does."""
    luck: float = 1.0
    """Share of the noise that counts as a chance: a run of the same configuration may be lucky."""


Allowed = Callable[[dict[str, Any]], float | None]
"""From a configuration to its cost [s] (NaN: not known), or None if it is not to be tried."""


def pick(
    encoder: Encoder,
    evidence: Evidence,
    *,
    running: tuple[FloatArray, FloatArray],
    aim: Objective,
    allowed: Allowed,
    rng: np.random.Generator,
    settings: GainSettings,
) -> Candidate | None:
    """Returns the candidate of the largest expected gain; None if none is allowed."""
    scorer = _Scorer(encoder, evidence, running, aim, rng, settings)
    candidates = _Candidates(encoder, allowed, scorer)
    order = np.argsort(-evidence.ranks, kind="stable")
    centers = evidence.units[order[:5]]
    half = settings.num_candidates // 2
    around = centers[rng.integers(len(centers), size=half)]
    scale = 10 ** rng.uniform(-2.2, -0.5, size=(half, 1))
    mutate = _Mutation(encoder)
    candidates.add(rng.random((half, len(encoder.parameters))))
    candidates.add(mutate(around, scale, rng))
    for narrow in (0.08, 0.02):
        if candidates.best:
            centers = np.array([pick.units for _, pick in candidates.best[:4]])
            candidates.add(mutate(np.repeat(centers, 12, axis=0), narrow, rng))
    if not candidates.best:
        return None
    best = candidates.best[0][1]
    return (aim.at_end and _probe(encoder, best, scorer, allowed, settings.probe)) or best


def _probe(
    encoder: Encoder, dear: Candidate, scorer: "_Scorer", allowed: Allowed, least: float
) -> Candidate | None:
    """Returns the cheaper run that tells most about a dear one for its cost; None if too little."""
    units = neighbours(dear.units)
    params = encoder.params(units)
    costs = np.array([allowed(each) or math.nan for each in params], dtype=float)
    rows = np.flatnonzero(costs < CHEAPER * dear.cost_s)
    if not least or not len(rows):
        return None
    worth = scorer.rise(units[rows], costs[rows], dear) * dear.cost_s / costs[rows]
    first = int(rows[int(worth.argmax())])
    if worth.max() < least:
        return None
    expected = scorer.expected(units[first], float(costs[first]))
    return Candidate(units[first], params[first], expected, float(costs[first]), before=dear)


class _Candidates:
    """The best of all candidates so far."""

    def __init__(self, encoder: Encoder, allowed: Allowed, scorer: "_Scorer") -> None:
        self._encoder, self._allowed, self._scorer = encoder, allowed, scorer
        self.best: list[tuple[float, Candidate]] = []

    def add(self, units: FloatArray) -> None:
        params = self._encoder.params(units)
        costs = [self._allowed(each) for each in params]
        rows = [row for row, cost in enumerate(costs) if cost is not None]
        if not rows:
            return
        cost_s = np.array([costs[row] for row in rows], dtype=float)
        gain, mean, sd = self._scorer.score(units[rows], cost_s)
        for i in np.argsort(-gain, kind="stable")[:6]:
            expected = Expected(float(mean[i]), float(sd[i]), self._scorer.threshold)
            picked = Candidate(units[rows[i]], params[rows[i]], expected, float(cost_s[i]))
            self.best.append((float(gain[i]), picked))
        self.best.sort(key=lambda scored: -scored[0])
        del self.best[6:]


class _Scorer:
    """The model, made anew from the evidence: it keeps nothing from one proposal to the next."""

    def __init__(
        self,
        encoder: Encoder,
        evidence: Evidence,
        running: tuple[FloatArray, FloatArray],
        aim: Objective,
        rng: np.random.Generator,
        settings: GainSettings,
    ) -> None:
        self._encoder, self._aim, self._settings = encoder, aim, settings
        known = evidence.costs[~np.isnan(evidence.costs)]
        self._usual_cost = float(np.median(known)) if len(known) else 1.0
        self._longest_cost = float(known.max()) if len(known) else 1.0
        self._model = self._of_distance(evidence, running, rng)
        self._memory = self._of_memory(evidence)

    def score(
        self, units: FloatArray, costs: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Returns the gain of candidates, and mean and deviation of their distance: (M,) each."""
        points = self._points(units, costs)
        mean, sd = self._model.predict(points)
        # What counts is the run's own metric, its luck included.
        sd = np.hypot(sd, self._settings.luck * self._model.noise_sd)
        chances = ndtr((mean - self.threshold) / sd[:, None])
        return self._gain(chances, costs) * self._fits(points), mean[:, 0], sd

    def _fits(self, points: FloatArray) -> FloatArray:
        """Returns the chances (M,) that there is enough memory."""
        if self._memory is None:
            return np.ones(len(points))
        room, room_sd = self._memory.predict(points)
        fits: FloatArray = ndtr(room / np.sqrt(room_sd**2 + 0.05))
        return fits

    def expected(self, units: FloatArray, cost_s: float) -> Expected:
        """Returns what is expected of one candidate."""
        _, mean, sd = self.score(units[None, :], np.array([cost_s]))
        return Expected(float(mean[0]), float(sd[0]), self.threshold)

    def rise(self, units: FloatArray, costs: FloatArray, dear: Candidate) -> FloatArray:
        """Returns what each candidate (M,) would tell about a dear run, see `probe`."""
        there = self._points(dear.units[None, :], np.array([dear.cost_s]))
        mean, sd = self._model.predict(there)
        luck_sd = self._settings.luck * self._model.noise_sd
        run = Unsure(float(mean[0, 0]), float(sd[0]), luck_sd, self.threshold)
        points = self._points(units, costs)
        # What does not fit tells nothing.
        return expected_rise(run, self._model.correlations(points, there)) * self._fits(points)

    def _gain(self, chances: FloatArray, costs: FloatArray) -> FloatArray:
        aim, settings = self._aim, self._settings
        if aim.at_end:
            cost = np.where(np.isnan(costs), self._usual_cost, costs)
            power = settings.cost_power if aim.has_leader else settings.early_cost_power
            gain: FloatArray = (
                chances[:, 0] * np.log(np.maximum(aim.best_s / cost, 1.001)) / cost**power
            )
            return gain
        falling = np.minimum.accumulate(chances, axis=1)
        tau = np.array(aim.fractions)
        weights = np.log(np.append(1.0, tau[:-1]) / tau)
        weights[0] = 0.05 if aim.has_leader else math.log(2.0)
        return np.asarray(falling @ weights)

    def _points(self, units: FloatArray, costs: FloatArray) -> FloatArray:
        points = self._encoder.points(units)
        if not (self._aim.at_end and self._settings.cost_feature):
            return points
        cost = np.where(np.isnan(costs), self._usual_cost, costs)
        # A factor of 20 in cost counts as much as a whole range.
        column = 1 + np.log(np.maximum(cost, 1e-9) / self._longest_cost) / 3
        return np.column_stack([points, column])

    def _of_distance(
        self,
        evidence: Evidence,
        running: tuple[FloatArray, FloatArray],
        rng: np.random.Generator,
    ) -> GaussianProcess:
        rows = np.flatnonzero(evidence.fits)
        first = evidence.distances[:, 0]
        rows = _some(rows, first, self._settings.max_points, rng)
        points = self._points(evidence.units[rows], evidence.costs[rows])
        values, variances = evidence.distances[rows], evidence.variances[rows]
        self.threshold = min(0.0, float(values[:, 0].max()) + self._settings.margin)
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
            return GaussianProcess(points, values, none, fit_scales(points, values, none))
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


class _Mutation:
    """Moves units: numbers a little, choices to a neighbour or anywhere; about half of them."""

    def __init__(self, encoder: Encoder) -> None:
        counts = [len(parameter.choices) for parameter in encoder.parameters]
        self._num_choices = np.array([max(count, 1) for count in counts])
        self._is_choice = np.array([count > 0 for count in counts])

    def __call__(
        self, units: FloatArray, scale: FloatArray | float, rng: np.random.Generator
    ) -> FloatArray:
        shape = units.shape
        moves = rng.random(shape) < (0.5 if shape[1] > 2 else 1.0)
        shifted = units + rng.normal(size=shape) * scale
        side = np.where(rng.random(shape) < 0.5, -1.0, 1.0) / self._num_choices
        kind, anywhere = rng.random(shape), rng.random(shape)
        jumped = np.where(kind < 0.5 + np.maximum(scale, 0.1), anywhere, units)
        stepped = np.where((kind < 0.5) & (self._num_choices > 2), units + side, jumped)
        moved = np.where(self._is_choice, stepped, shifted)
        return np.clip(np.where(moves, moved, units), 0.0, 1.0 - 1e-9)
