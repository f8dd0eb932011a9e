"""The acquisition function of the sampler `gain`, and its maximisation.

Where the length is part of the configuration, its cost c is known before it runs; only whether it
meets the target is uncertain. And a run that missed says by how much, at every moment of its
training clock. So the model is one of the metric, not of the censored time: a Gaussian process over
configurations of the distance y to the target (see `curve_table`), with posterior P(y ≥ 0).

Before any run has met the target:

    fixed length:  gain = P(y(1) ≥ θ) · log(L / c) / c^κ
    anytime:       gain = Σ_k P(y(τ_k) ≥ θ) · w_k,    w_k = log(τ_(k−1) / τ_k)

Afterwards, the gain of `expected_time`, over c^κ where c is known. What was tried competes with
what was not: another run of it tells luck from speed.

The longest runs come nearest, so that this alone would bet the budget on them, and afterwards on
runs like the first hit. Where the length is fixed, every other run is therefore one of the bracket
of costs (c in L/6 · [1, 3], L/18 · [1, 3], …) of which the least was spent, as in Hyperband (Li et
al. 2018), with the first of these gains and θ of the bracket; once there is a hit, only where a run
may meet the target.

| symbol | meaning                                                                           |
|--------|-----------------------------------------------------------------------------------|
| L      | twice the longest known cost                                                       |
| τ_k    | fractions of the time to beat (before there is one, of the longest run)            |
| θ      | 0; before any run has met the target, a little beyond the best so far, since      |
|        | chances that are all 0 do not rank; those are of the mean, without a run's luck     |
| κ      | weight of the cost                                                                  |

A second Gaussian process predicts the memory constraint, once something was infeasible. Candidates
are drawn evenly and around the best trials, then refined locally. Running trials are imputed with
their posterior means (constant liar), which keeps concurrent proposals apart.
"""

import math
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from tune_speed.tuning.policy.base import AcquisitionSettings
from tune_speed.tuning.policy.curve import FloatArray
from tune_speed.tuning.policy.encoding import BoolArray, Encoder
from tune_speed.tuning.policy.expected_time import (
    gain_of_metric,
    gain_of_run,
    log_expected_s,
    noise_at,
)
from tune_speed.tuning.policy.gaussian_process import (
    GaussianProcess,
    Scales,
    fit_scales,
    with_repeats,
)


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


NUM_BRACKETS, BRACKET = 4, 3.0
"""Brackets of costs, and the factor that one spans; the last has all that is cheaper."""


class Brackets(NamedTuple):
    """How much was spent on runs of which costs, from the longest on."""

    longest_s: float
    spent_s: tuple[float, ...]
    """(B,) [s]"""

    @classmethod
    def of_runs(cls, longest_s: float, cost_s: FloatArray, spent_s: FloatArray) -> "Brackets":
        brackets = cls(longest_s, ()).of(cost_s)
        sums = np.bincount(brackets, spent_s, minlength=NUM_BRACKETS)
        return cls(longest_s, tuple(sums.tolist()))

    def of(self, cost_s: FloatArray) -> npt.NDArray[np.int_]:
        """Returns the bracket (M,) of each cost, 0 for the longest runs."""
        places = np.log(self.longest_s / np.maximum(cost_s, 1e-9)) / math.log(BRACKET)
        return np.clip(np.floor(places), 0, NUM_BRACKETS - 1).astype(int)

    @property
    def order(self) -> list[int]:
        """The brackets, that with the least spent first."""
        return sorted(range(NUM_BRACKETS), key=self.spent_s.__getitem__)


class Objective(NamedTuple):
    """What the acquisition function measures gains against."""

    best_s: float
    """Time to be beaten [s]: E*, and the end of the axis where the length is free."""
    has_leader: bool
    at_end: bool
    """Whether a run counts by the metric at its own end, at a cost known beforehand."""
    fractions: tuple[float, ...]
    """τ (K,), falling from 1; unused where runs count by their ends."""
    only_again: bool = False
    """Whether only what was tried may be run."""
    is_end: bool = False
    """Whether the favourites are told apart, whatever it brings: the budget is held back for it."""
    brackets: Brackets | None = None
    """The next run has a cost of which the least was spent, if any has a chance; None: any cost."""
    best_y: float | None = None
    """Where the metric counts and not the time: the distance to be beaten. Then −y takes the place
    of ln E in all gains."""


class Candidate(NamedTuple):
    """A configuration and what the model expects of it."""

    units: FloatArray
    params: dict[str, Any]
    cost_s: float
    """NaN if not known."""
    chance: float = math.nan
    """Probability that a run meets the target; before any did, that it comes nearer."""


Pool = tuple[list[Candidate], list[Candidate]]
"""Candidates that were drawn evenly, and those around the best trials."""
Allowed = Callable[[dict[str, Any]], float | None]
"""From a configuration to its cost [s] (NaN: not known), or None if it is not to be tried."""


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
        self.encoder, self.evidence, self.settings = encoder, evidence, settings
        self._has_cost = has_cost and settings.cost_feature
        known = evidence.costs[~np.isnan(evidence.costs)]
        self.usual_cost = float(np.median(known)) if len(known) else 1.0
        self._longest_cost = float(known.max()) if len(known) else 1.0
        at = evidence.units[~np.isnan(evidence.costs)]
        self._slowness = encoder.choice_slopes(at, np.log(np.maximum(known, 1e-9)))
        # Clocks differ between runs of a configuration, which must be the same point.
        self._costs: dict[bytes, float] = {}
        for units, cost in zip(evidence.units, evidence.costs, strict=True):
            self._costs.setdefault(units.tobytes(), float(cost))
        rows = np.flatnonzero(evidence.fits)
        # By configuration: of one, its good runs alone would be left, and each counted for more.
        usual = _mean_by_row(evidence.units[rows], evidence.distances[rows, 0])
        some = _some(np.arange(len(rows)), usual, settings.max_points, rng)
        rows, usual = rows[some], usual[some]
        points = self.points(evidence.units[rows], evidence.costs[rows])
        values, variances = evidence.distances[rows], evidence.variances[rows]
        # Of a spread of the metric, the logarithm far from the target shows little.
        shares = np.maximum(np.exp(-2 * np.abs(usual)), settings.least_share)
        few = _some(np.arange(len(rows)), usual, settings.fit_points, rng)
        scales = fit_scales(points[few], values[few, 0], variances[few], shares=shares[few])
        scales = with_repeats(scales, values[:, 0], points, shares)
        self._seen = points, values, variances, shares, scales
        self.process = GaussianProcess(points, values, variances, scales, shares=shares)
        self._memory = self._of_memory(evidence)

    def with_running(self, units: FloatArray, costs: FloatArray) -> GaussianProcess:
        """Returns the process with running trials (R, P) at their posterior means."""
        if not len(units):
            return self.process
        points, values, variances, shares, scales = self._seen
        there = self.points(units, costs)
        mean, _ = self.process.predict(there)
        own = np.maximum(np.exp(-2 * np.abs(mean[:, 0])), float(shares.min()))
        return GaussianProcess(
            np.concatenate([points, there]),
            np.concatenate([values, mean]),
            np.concatenate([variances, np.zeros(len(there))]),
            scales,
            shares=np.concatenate([shares, own]),
        )

    def points(self, units: FloatArray, costs: FloatArray) -> FloatArray:
        """Returns the process' inputs (M, D) of configurations and what they cost [s]."""
        points = self.encoder.points(units)
        if not self._has_cost:
            return points
        costs = np.array(
            [self._costs.get(u.tobytes(), c) for u, c in zip(units, costs, strict=True)]
        )
        cost = self.likely_s(costs)
        # A factor of 20 in cost counts as much as a whole range.
        log_cost = np.log(np.maximum(cost, 1e-9) / self._longest_cost) - points @ self._slowness
        return np.column_stack([points, 1 + log_cost / 3])

    def likely_s(self, costs: FloatArray) -> FloatArray:
        """Returns costs (M,) [s], the usual one where they are not known."""
        return np.where(np.isnan(costs), self.usual_cost, costs)

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


def best_candidate(
    model: Model,
    objective: Objective,
    *,
    running: tuple[FloatArray, FloatArray],
    allowed: Allowed,
    tried: Sequence[Candidate],
    rng: np.random.Generator,
) -> Candidate | None:
    """Returns the maximum of the acquisition function; None if none is allowed.

    Of running trials there are units (R, P) and likely costs (R,) [s]. `tried` may be run again.
    """
    search = _Search(model, objective, model.with_running(*running), allowed)
    if objective.is_end:
        return search.hopeful(tried) if tried else None
    if objective.brackets and (found := search.in_a_bracket(objective.brackets, rng)):
        return found
    best = None
    if not objective.only_again:
        pool = candidates(model, model.settings.num_candidates, rng, allowed)
        best = search.maximum(pool, rng)
    scored = [each for each in (best, search.again(tried)) if each]
    return max(scored, key=lambda each: each[0])[1] if scored else None


def candidates(model: Model, num: int, rng: np.random.Generator, allowed: Allowed) -> Pool:
    """Returns those allowed of `num`, a half of them around the five best trials."""
    half, encoder = num // 2, model.encoder
    centers = model.evidence.units[np.argsort(-model.evidence.ranks, kind="stable")[:5]]
    around = centers[rng.integers(len(centers), size=half)]
    scale = 10 ** rng.uniform(-2.2, -0.5, size=(half, 1))
    evenly = rng.random((half, len(encoder.parameters)))
    near = _mutated(encoder, around, scale, rng)
    return _allowed_at(encoder, evenly, allowed), _allowed_at(encoder, near, allowed)


def _allowed_at(encoder: Encoder, units: FloatArray, allowed: Allowed) -> list[Candidate]:
    params = encoder.params(units)
    every = zip(units, params, map(allowed, params), strict=True)
    return [Candidate(at, each, float(cost)) for at, each, cost in every if cost is not None]


class _Search:
    """The acquisition function, over the model and what is running."""

    def __init__(
        self,
        model: Model,
        objective: Objective,
        process: GaussianProcess,
        allowed: Allowed,
        bracket: int | None = None,
    ) -> None:
        """Takes the process with what is running; `bracket` is the only one to search in."""
        self._objective, self._allowed, self._bracket = objective, allowed, bracket
        self._of, self._settings, self._model = model, model.settings, process
        self._best: list[tuple[float, Candidate]] = []
        """The best candidates so far, with their gains."""
        self._fractions = np.array(objective.fractions)
        self._threshold = self._to_meet()

    def in_a_bracket(self, brackets: Brackets, rng: np.random.Generator) -> Candidate | None:
        """Returns the best candidate of the first bracket with a chance; None: there is none."""
        pool = candidates(self._of, self._settings.num_candidates, rng, self._allowed)
        for bracket in brackets.order:
            search = _Search(self._of, self._objective, self._model, self._allowed, bracket)
            _, best = search.maximum(pool, rng) or (0.0, None)
            if best and best.chance >= self._settings.least_chance:
                return best
            # Once there is a time to beat, what could not meet the target is of no use at any cost.
            if best and not self._objective.has_leader:
                return None
        return None

    def maximum(self, pool: Pool, rng: np.random.Generator) -> tuple[float, Candidate] | None:
        """Returns the largest gain, and of what; None where nothing of the pool is allowed."""
        for part in pool:
            self._add(part)
        for narrow in (0.08, 0.02):
            if self._best:
                centers = np.array([candidate.units for _, candidate in self._best[:4]])
                near = _mutated(self._of.encoder, np.repeat(centers, 12, axis=0), narrow, rng)
                self._add(_allowed_at(self._of.encoder, near, self._allowed))
        return self._best[0] if self._best else None

    def _add(self, pool: Sequence[Candidate]) -> None:
        here = self._is_here(np.array([each.cost_s for each in pool]))
        pool = list(compress(pool, here))
        if not pool:
            return
        units = np.array([each.units for each in pool])
        gain, chance = self._score(units, np.array([each.cost_s for each in pool]))
        for i in np.argsort(-gain, kind="stable")[:6]:
            self._best.append((float(gain[i]), pool[i]._replace(chance=float(chance[i]))))
        self._best.sort(key=lambda scored: -scored[0])
        del self._best[6:]

    def _is_here(self, cost_s: FloatArray) -> BoolArray:
        brackets = self._objective.brackets
        if self._bracket is None or brackets is None:
            return np.ones(len(cost_s), dtype=bool)
        here: BoolArray = brackets.of(self._of.likely_s(cost_s)) == self._bracket
        return here

    def _to_meet(self) -> float:
        """Returns θ: 0, or before the first hit a little beyond the best of the bracket so far."""
        if self._objective.has_leader:
            return 0.0
        evidence = self._of.evidence
        y, costs = evidence.distances[evidence.fits, 0], evidence.costs[evidence.fits]
        best = y[self._is_here(costs)].max(initial=y.min())
        return min(0.0, float(best) + self._settings.margin)

    def again(self, tried: Sequence[Candidate]) -> tuple[float, Candidate] | None:
        """Returns the gain of another run where it is worth most, and of what; None: nowhere."""
        if not tried or not self._objective.has_leader:
            return None
        mean, sd, costs = self._predicted(tried)
        now = self._log_expected(mean, sd, costs)
        # What is to be beaten is the best of all; by another run of that one, the next.
        order = np.argsort(now, kind="stable")
        others = np.full(len(now), now[order[0]])
        others[order[0]] = now[order[min(1, len(now) - 1)]]
        worth = self._gain_of_run(mean, sd, costs, to_beat=others)
        is_best = np.arange(len(now)) == order[0]
        worth = np.where(is_best, worth - np.maximum(others - now, 0.0), worth)
        if worth.max() < self._settings.least_gain:
            return None
        worth = worth / self._price(costs)
        first = int(np.argmax(worth))
        return float(worth[first]), tried[first]

    def hopeful(self, tried: Sequence[Candidate]) -> Candidate:
        """Returns what has the least expected time if it is better than known, by one deviation.

        The worth of one more run, as in `again`, is next to nothing where several turn the order.
        """
        mean, sd, costs = self._predicted(tried)
        known = np.zeros(len(sd))
        return tried[int(self._log_expected(mean + sd[:, None], known, costs).argmin())]

    def _predicted(self, tried: Sequence[Candidate]) -> tuple[FloatArray, FloatArray, FloatArray]:
        costs = np.array([each.cost_s for each in tried])
        points = self._of.points(np.array([each.units for each in tried]), costs)
        return (*self._model.predict(points), costs)

    def _score(self, units: FloatArray, costs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns the gain of candidates, and the chances of use: (M,) each."""
        points = self._of.points(units, costs)
        mean, sd = self._model.predict(points)
        noise_sd = self._model.noise_sd
        if not self._objective.has_leader and self._threshold < 0:
            # Luck comes nearer the target, but not to it: with it one corner was run fifty times.
            noise_sd = 0.0
        # The run's own metric has to meet the target, and that includes its noise.
        spread = np.hypot(sd[:, None], noise_at(mean, noise_sd))
        chances = ndtr((mean - self._threshold) / spread)
        if self._objective.has_leader and self._bracket is None:
            best_y = self._objective.best_y
            best = math.log(self._objective.best_s) if best_y is None else -best_y
            to_beat = np.full(len(sd), best)
            gain = self._gain_of_run(mean, sd, costs, to_beat=to_beat) / self._price(costs)
        else:
            gain = self._gain(chances, costs)
        return gain * self._of.fits(points), chances[:, 0]

    def _gain_of_run(
        self, mean: FloatArray, sd: FloatArray, costs: FloatArray, *, to_beat: FloatArray
    ) -> FloatArray:
        if self._objective.best_y is not None:
            return gain_of_metric(mean[:, 0], sd, self._model.noise_sd, to_beat=to_beat)
        log_cost = np.log(self._of.likely_s(costs)) if self._objective.at_end else None
        if log_cost is None:  # E is a share of the time to beat.
            to_beat = to_beat - math.log(self._objective.best_s)
        return gain_of_run(
            mean,
            sd,
            self._model.noise_sd,
            log_cost=log_cost,
            fractions=self._fractions,
            to_beat=to_beat,
        )

    def _log_expected(self, mean: FloatArray, sd: FloatArray, costs: FloatArray) -> FloatArray:
        if self._objective.best_y is not None:
            return -mean[:, 0]
        at_end = self._objective.at_end
        log_cost = np.log(self._of.likely_s(costs)) if at_end else None
        noise_sd = self._model.noise_sd
        share = log_expected_s(mean, sd, noise_sd, log_cost=log_cost, fractions=self._fractions)
        return share if at_end else share + math.log(self._objective.best_s)

    def _price(self, costs: FloatArray) -> FloatArray | float:
        return (
            self._of.likely_s(costs) ** self._settings.cost_power if self._objective.at_end else 1.0
        )

    def _gain(self, chances: FloatArray, costs: FloatArray) -> FloatArray:
        """Returns the gain (M,) before any run has met the target."""
        objective, settings = self._objective, self._settings
        if objective.at_end:
            cost = self._of.likely_s(costs)
            log_ratio = np.log(np.maximum(objective.best_s / cost, 1.001))
            gain: FloatArray = chances[:, 0] * log_ratio / cost**settings.early_cost_power
            return gain
        falling = np.minimum.accumulate(chances, axis=1)
        weights = np.log(np.append(1.0, self._fractions[:-1]) / self._fractions)
        # The time to be beaten is twice the longest run's, so that a hit at its end gains log 2.
        weights[0] = math.log(2.0)
        return np.asarray(falling @ weights)


def _some(
    rows: npt.NDArray[np.int_], values: FloatArray, limit: int, rng: np.random.Generator
) -> npt.NDArray[np.int_]:
    if len(rows) <= limit:
        return rows
    by_value = rows[np.argsort(-values[rows], kind="stable")]
    num_best = 2 * limit // 3
    others = rng.choice(by_value[num_best:], size=limit - num_best, replace=False)
    return np.sort(np.concatenate([by_value[:num_best], others]))


def _mean_by_row(rows: FloatArray, values: FloatArray) -> FloatArray:
    """Returns for each of `values` (N,) the mean of those whose `rows` (N, P) are equal to its."""
    _, group = np.unique(rows, axis=0, return_inverse=True)
    group = group.reshape(-1)
    means: FloatArray = (np.bincount(group, weights=values) / np.bincount(group))[group]
    return means


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
