"""The chance that the rest of a search finds something better: when it is time to stop looking.

Of candidates x that were not tried, f is drawn jointly from the model's posterior. With E(x) the
expected time of `expected_time` of runs around what is drawn, and E* what is known of that of the
recommended configuration (the median of its draws),

    P(better) = P(min over m of the x of E(x) < E* · (1 − b)).

The m are those that are most often better in these draws: as many as are tried with the budget
left, at the rate so far, over the runs that one must have to be recommended. That the search would
try just these makes the chance too large; that the model knows nothing of a region far from all
runs, too small.
"""

from collections.abc import Sequence

import numpy as np

from tune_speed.tuning.policy.acquisition import (
    Allowed,
    Candidate,
    Evidence,
    Model,
    best_units,
    candidates,
)
from tune_speed.tuning.policy.encoding import Encoder
from tune_speed.tuning.policy.expected_time import log_expected_s

NUM_DRAWS, NUM_CANDIDATES = 400, 400


def chance_of_better(
    encoder: Encoder,
    model: Model,
    evidence: Evidence,
    favourite: Candidate,
    *,
    fractions: Sequence[float],
    at_end: bool,
    allowed: Allowed,
    num_tried: int,
    better_by: float,
    rng: np.random.Generator,
) -> float:
    """Returns P(better) with `num_tried` further configurations; 0 where none is allowed."""
    pool = candidates(encoder, best_units(evidence, 5), num=NUM_CANDIDATES, rng=rng)
    costs = [allowed(each) for each in encoder.params(pool)]
    rows = [row for row, cost in enumerate(costs) if cost is not None]
    if not rows or num_tried < 1:
        return 0.0
    units = np.concatenate([favourite.units[None], pool[rows]])
    cost_s = np.array([favourite.cost_s, *(costs[row] for row in rows)], dtype=float)
    points = model.points(units, cost_s)
    drawn = model.process.sample(points, NUM_DRAWS, rng)
    expected = log_expected_s(
        drawn,
        np.full(drawn.shape[:2], max(model.process.noise_sd, 1e-6)),
        log_cost=np.log(model.likely_s(cost_s)) if at_end else None,
        fractions=np.array(fractions),
    )
    to_beat = float(np.median(expected[:, 0])) + np.log1p(-better_by)
    better = (expected[:, 1:] < to_beat) & (model.fits(points[1:]) >= 0.5)
    likeliest = np.argsort(-better.mean(axis=0), kind="stable")[:num_tried]
    return float(better[:, likeliest].any(axis=1).mean())
