"""What the rest of a search is likely to bring: its runs, drawn from the model that proposes them.

A path is one way in which the search may go on. Its truth f is a joint draw of the model's
posterior at a pool of candidates, and its runs are those that a search would choose by what it
knows by then: of run j

    i_j = argmax_i P(y_i ≥ θ) · log(L / c_i) / c_i^κ,    y_j = f(i_j) + ε_j,    ε_j ~ N(0, w·n²)

with the symbols of `acquisition`, L twice the shortest hit (before there is one, twice the longest
run), and one run in ten drawn evenly. Each y_j conditions the path's own posterior, by rank-one
updates of its mean and variance. The path ends when the budget does. The chance of an event, such
as a first hit by some time, is the share of paths in which it happens.

A pool is coarser than what a search may try, and the model's scales, which are taken as known, are
those of runs that were mostly worse. So the truth of a path is drawn with `WIDEN` times the model's
deviations, `RAISE` of them above its mean. Both were set on recorded searches, where intervals
without them were too low (see tests/benchmarks). A path has 200 runs at most, with no hit beyond.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from tune_speed.tuning.policy.acquisition import (
    AcquisitionSettings,
    Allowed,
    Evidence,
    Model,
    best_units,
    candidates,
)
from tune_speed.tuning.policy.curve import FloatArray
from tune_speed.tuning.policy.encoding import Encoder

NUM_PATHS, NUM_CANDIDATES, MOST_RUNS = 200, 256, 200
ROUNDS, NUM_DRAWN = 3, 600
AHEAD = 2.0
"""How far beyond the best so far a candidate of the pool should come, in margins of θ."""
WIDEN, RAISE = 1.5, 1.25
EXPLORE = 0.1

LEAST_WHOLE = {"fixed_length": 3, "anytime": 6}
"""Trials that went to their end. Where most are stopped, forecasts from fewer were far too low."""


class Paths(NamedTuple):
    """Ways in which a search may go on: P paths of R runs."""

    spent_s: FloatArray
    """(P, R) training clock of all runs so far [s], after each."""
    ends: FloatArray
    """(P, R) distance to the target at the end of each run; -inf past the budget."""

    def until(self, spent_s: float, runs: float) -> "Paths":
        """Returns the paths with a smaller budget."""
        num = int(min(runs, self.ends.shape[1]))
        clock, ends = self.spent_s[:, :num], self.ends[:, :num]
        is_in = clock <= spent_s
        return Paths(np.where(is_in, clock, np.inf), np.where(is_in, ends, -np.inf))

    def first_hit_s(self) -> FloatArray:
        """Returns the training clock at which the target is met first (P,) [s]; infinite: never."""
        times: FloatArray = np.where(self.ends >= 0, self.spent_s, np.inf)
        first: FloatArray = times.min(axis=1, initial=np.inf)
        return first


class Range(NamedTuple):
    """An interval that holds what comes in four of five cases, and its middle."""

    low: float
    middle: float
    high: float


def range_of(values: FloatArray) -> Range:
    """Returns the middle four fifths of values (N,), of which some may be infinite.

    Where the upper end is, a fifth of them lie below the lower one, instead of a tenth.
    """
    low, fifth, middle, high = np.quantile(values, (0.1, 0.2, 0.5, 0.9), method="inverted_cdf")
    return Range(float(low if np.isfinite(high) else fifth), float(middle), float(high))


def paths_of(
    encoder: Encoder,
    model: Model,
    evidence: Evidence,
    *,
    running: tuple[FloatArray, FloatArray],
    used: float,
    allowed: Allowed,
    limit_s: float,
    left_s: float,
    left_runs: float,
    settings: AcquisitionSettings,
    rng: np.random.Generator,
) -> Paths:
    """Returns ways to go on until the budget, `left_s` or `left_runs`, is used up.

    First end the runs that are `running`, units (R, P) and costs (R,) [s], of which half is left to
    do. Runs take `used` of their costs on average: some are stopped. `limit_s` is L.
    """
    best_y = float(evidence.distances[evidence.fits, 0].max())
    units, cost = _pool(encoder, model, evidence, allowed, best_y, limit_s, settings, rng)
    begun = len(running[0])
    units = np.concatenate([running[0], units])
    cost = np.concatenate([np.where(np.isnan(running[1]), model.usual_cost, running[1]), cost])
    price = used * np.where(np.arange(len(cost)) < begun, 0.5 * cost, cost)
    points = model.points(units, cost)
    start, prior = model.process.joint(points)
    noise_sd, num = max(model.process.noise_sd, 1e-6), NUM_PATHS
    truth = start[:, 0] + WIDEN * (model.process.sample(points, num, rng)[..., 0] - start[:, 0])
    truth += RAISE * np.sqrt(prior.diagonal())
    prior = WIDEN**2 * prior
    shares = np.sqrt(np.maximum(np.exp(-2 * np.abs(truth)), settings.least_share))
    fits = model.fits(points) >= 0.5
    every = np.arange(num)
    most = int(min(left_runs, MOST_RUNS, left_s / price.min() + 1))
    mean, variance = np.repeat(start[None, :, 0], num, axis=0), np.tile(prior.diagonal(), (num, 1))
    seen = np.zeros((num, most, len(cost)))
    is_taken = np.zeros((num, len(cost)), dtype=bool)
    is_taken[:, :begun] = True
    best, limit, spent = np.full(num, best_y), np.full(num, limit_s), np.zeros(num)
    all_spent, ends = np.full((num, most), np.inf), np.full((num, most), -np.inf)
    for j in range(most):
        theta = np.minimum(0.0, best + settings.margin)[:, None]
        chance = ndtr((mean - theta) / np.sqrt(variance + noise_sd**2))
        gain = _gain(chance, cost, limit[:, None], settings)
        chosen = np.where(fits & ~is_taken, gain, -1.0).argmax(axis=1)
        evenly = rng.integers(begun, len(cost), size=num)
        chosen = np.where(rng.random(num) < EXPLORE, evenly, chosen)
        chosen = np.full(num, j) if j < begun else chosen
        is_taken[every, chosen] = True
        spent = spent + price[chosen]
        if (spent > left_s).all():
            return Paths(all_spent[:, :j], ends[:, :j])
        own_noise = noise_sd * shares[every, chosen]
        y = truth[every, chosen] + own_noise * rng.normal(size=num)
        # What earlier runs explain is taken from the prior's column.
        column = prior[chosen] - np.einsum(
            "pr,prn->pn", seen[every, :j, chosen], seen[:, :j], optimize=True
        )
        scale = np.sqrt(np.maximum(column[every, chosen], 0.0) + own_noise**2)[:, None]
        seen[:, j] = column / scale
        mean += seen[:, j] * (y - mean[every, chosen])[:, None] / scale
        variance = np.maximum(variance - seen[:, j] ** 2, 1e-10)
        is_in = spent <= left_s
        all_spent[:, j] = np.where(is_in, spent, np.inf)
        ends[:, j] = np.where(is_in & fits[chosen], y, -np.inf)
        best = np.maximum(best, ends[:, j])
        limit = np.where(ends[:, j] >= 0, np.minimum(limit, 2 * cost[chosen]), limit)
    return Paths(all_spent, ends)


def _pool(
    encoder: Encoder,
    model: Model,
    evidence: Evidence,
    allowed: Allowed,
    best_y: float,
    limit_s: float,
    settings: AcquisitionSettings,
    rng: np.random.Generator,
) -> tuple[FloatArray, FloatArray]:
    """Returns candidates (N, P) that a search may come to, and their costs (N,) [s]."""
    centers, found = best_units(evidence, 5), list[tuple[FloatArray, FloatArray, FloatArray]]()
    for _ in range(ROUNDS):
        units = candidates(encoder, centers, num=NUM_DRAWN, rng=rng)
        costs = [allowed(each) for each in encoder.params(units)]
        rows = [row for row, cost in enumerate(costs) if cost is not None]
        cost = np.array([costs[row] for row in rows], dtype=float)
        cost = np.where(np.isnan(cost), model.usual_cost, cost)
        mean, sd = model.process.predict(model.points(units[rows], cost))
        theta = min(0.0, best_y + AHEAD * settings.margin)
        chance = ndtr((mean[:, 0] - theta) / sd)
        found.append((units[rows], cost, _gain(chance, cost, limit_s, settings)))
        every = [np.concatenate(each) for each in zip(*found, strict=True)]
        order = np.argsort(-every[2], kind="stable")[:NUM_CANDIDATES]
        found = [(every[0][order], every[1][order], every[2][order])]
        centers = found[0][0][:32]
    return found[0][0], found[0][1]


def _gain(
    chance: FloatArray, cost: FloatArray, limit: FloatArray | float, settings: AcquisitionSettings
) -> FloatArray:
    gain: FloatArray = chance * np.log(np.maximum(limit / cost, 1.001))
    return gain / cost**settings.early_cost_power
