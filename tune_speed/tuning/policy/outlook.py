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

import numpy as np

from tune_speed.study.settings import UntilConfig
from tune_speed.tuning.policy.acquisition import Allowed, Model, candidates
from tune_speed.tuning.policy.expected_time import log_expected_s
from tune_speed.tuning.policy.gaussian_process import one_thread
from tune_speed.tuning.policy.history import History
from tune_speed.tuning.policy.learned import Learned
from tune_speed.tuning.policy.settings import Parts

NUM_DRAWS, NUM_CANDIDATES = 400, 400


class Settling:
    """Whether a search has settled, by what is left of its budget."""

    def __init__(self, history: History, learned: Learned, parts: Parts, *, seed: int) -> None:
        self._history, self._learned, self._parts, self._seed = history, learned, parts, seed
        self.chance: tuple[int, float] = (-1, 1.0)
        """The chance that the rest of the budget finds something better, after so many trials."""
        self._at: tuple[float, float] | None = None
        """Share of the budget at which that was small enough, and the chance; None: not yet."""

    @property
    def has_begun(self) -> bool:
        """Whether the chance was small enough: then the favourites are told apart."""
        return self._at is not None

    @property
    def why(self) -> str | None:
        """Why nothing more is proposed; None: it has not settled."""
        if self._at is None or (until := self._parts.until) is None:
            return None
        return (
            f"the chance that the rest of the budget finds a recipe better by"
            f" {until.better_by:.0%} is {self._at[1]:.1%}"
        )

    def is_over(self, spent: float, allowed: Allowed) -> bool:
        """Returns whether nothing better is likely, and the favourites were told apart."""
        until, model = self._parts.until, self._learned.model
        if until is None or model is None or self._history.leader is None:
            return False
        hold_back = self._parts.hold_back if self._parts.repeats else 0.0
        if self._at is None and spent < 1 - hold_back:
            if self.chance[0] != self._history.ended.num:
                self.chance = self._history.ended.num, self._chance(model, until, spent, allowed)
            if self.chance[1] < until.probability_of_better:
                self._at = spent, self.chance[1]
        return self._at is not None and spent >= self._at[0] / (1 - hold_back)

    @one_thread()
    def _chance(self, model: Model, until: UntilConfig, spent: float, allowed: Allowed) -> float:
        """Returns P(better) with what the budget left pays for; 0 where nothing is allowed."""
        ended, parts = self._history.ended, self._parts
        best = ended.of_id(self._learned.favourites[0].trial_id)
        rng = np.random.default_rng([self._seed, ended.num, 13])
        pool = candidates(model, NUM_CANDIDATES, rng)
        costs = [allowed(each) for each in model.encoder.params(pool)]
        rows = [row for row, cost in enumerate(costs) if cost is not None]
        if not rows:
            return 0.0
        units = np.concatenate([best.units[None], pool[rows]])
        cost_s = np.array([best.likely_s, *(costs[row] for row in rows)], dtype=float)
        points = model.points(units, cost_s)
        drawn = model.process.sample(points, NUM_DRAWS, rng)
        expected = log_expected_s(
            drawn,
            np.full(drawn.shape[:2], max(model.process.noise_sd, 1e-6)),
            log_cost=np.log(model.likely_s(cost_s)) if self._history.by_share else None,
            fractions=np.array(self._history.fractions),
        )
        to_beat = float(np.median(expected[:, 0])) + np.log1p(-until.better_by)
        better = (expected[:, 1:] < to_beat) & (model.fits(points[1:]) >= 0.5)
        left = max(1 - parts.hold_back - spent, 0.0) / max(spent, 1e-9)
        num_tried = max(1, int(left * len(ended.configurations())) // parts.sure_runs)
        likeliest = np.argsort(-better.mean(axis=0), kind="stable")[:num_tried]
        return float(better[:, likeliest].any(axis=1).mean())
