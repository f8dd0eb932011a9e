"""What the trials of a search teach: a model, what is recommended, and when to stop looking.

Of candidates x that were not tried, f is drawn jointly from the model's posterior. With E(x) the
expected time of `expected_time` of runs around what is drawn, and E* what is known of that of the
recommended configuration (the median of its draws),

    P(better) = P(min over m of the x of E(x) < E* · (1 − b)).

The m are those that are most often better in these draws: as many as are tried with the budget
left, at the rate so far, over the runs that one must have to be recommended.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from tune_speed.core.records import Recommended, Status
from tune_speed.core.stats import wilson_interval
from tune_speed.core.text import Interval
from tune_speed.core.words import StopKind, StopReason
from tune_speed.study.settings import UntilConfig
from tune_speed.tuning.policy import base
from tune_speed.tuning.policy.acquisition import Allowed, Candidate, Model, candidates
from tune_speed.tuning.policy.base import Parts
from tune_speed.tuning.policy.chances import chances
from tune_speed.tuning.policy.curve import FloatArray
from tune_speed.tuning.policy.expected_time import log_expected_s
from tune_speed.tuning.policy.gaussian_process import one_thread
from tune_speed.tuning.policy.history import History
from tune_speed.tuning.policy.trials import Known, Trial

NUM_FAVOURITES = 100
NUM_TRIED = 16
NUM_DRAWS, NUM_CANDIDATES = 400, 400


class Learned:
    """What is known of configurations, as of the last trial that ended."""

    def __init__(self, history: History, parts: Parts, *, seed: int) -> None:
        self._history, self._parts, self._seed = history, parts, seed
        self._num_seen = -1
        self.model: Model | None = None
        """None before three trials fitted."""
        self.tried: list[Candidate] = []
        """Configurations of the least expected times, which may be run again."""

    @property
    def favourites(self) -> tuple[Recommended, ...]:
        self.update()
        return self._history.favourites or base.alone(self._history.leader)

    def update(self) -> None:
        history, parts = self._history, self._parts
        number = history.ended.num
        if self._num_seen == number:
            return
        with one_thread():
            evidence = history.evidence()
            model = None
            if evidence.fits.sum() >= 3:
                model = Model(
                    history.encoder,
                    evidence,
                    has_cost=history.by_share,
                    settings=parts.acquisition,
                    rng=np.random.default_rng([self._seed, number, 11]),
                )
            self._num_seen, self.model = number, model
            self.tried, known, history.leading_s = [], history.ended.known(), None
            if known and history.knows_length and model is not None:
                history.favourites = self._by_the_model(model, known)
            else:
                history.favourites = self._without_a_model(known)

    def _without_a_model(self, known: Sequence[Known]) -> tuple[Recommended, ...]:
        known = sorted(known, key=lambda each: each.cautious_s)
        num = 1 if self._history.knows_length else NUM_FAVOURITES
        return tuple(map(_by_their_runs, known[:num]))

    def _by_the_model(self, model: Model, known: Sequence[Known]) -> tuple[Recommended, ...]:
        runs = list(self._history.ended.configurations().values())
        expected, mean, sd, costs = self._log_expected(model, runs)
        # What did not fit has no distance that says how good it is, and will not fit again.
        is_oom = [any(trial.ended.status == Status.OOM for trial in own) for own in runs]
        fit = [i for i in np.argsort(expected, kind="stable") if not is_oom[i]]
        self._keep([runs[i][0] for i in fit], costs[fit])
        met = [i for i, own in enumerate(runs) if any(trial.met for trial in own)]
        expected, mean, sd, costs = expected[met], mean[met], sd[met], costs[met]
        order = np.argsort(expected, kind="stable")[:NUM_FAVOURITES]
        self._history.leading_s = float(np.exp(expected[order[0]]))
        found = chances(
            mean[order],
            sd[order],
            noise_sd=model.process.noise_sd,
            repeats=sum(map(len, runs)) - len(runs),
            hits=np.array([known[i].hits for i in order]),
            runs=np.array([len(known[i].runs) for i in order]),
        )
        return tuple(
            known[i].recommended(
                known[i].fastest,
                chance=chance,
                final=known[i].final,
                expected_s=float(costs[i]) / chance.value,
            )
            for i, chance in zip(order, found, strict=True)
        )

    def _keep(self, trials: Sequence[Trial], costs: FloatArray) -> None:
        first = list(zip(trials, costs.tolist(), strict=True))[:NUM_TRIED]
        self.tried = [Candidate(each.units, each.proposal.params, cost) for each, cost in first]

    def _log_expected(
        self, model: Model, runs: Sequence[Sequence[Trial]]
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Returns ln E, mean and deviation of the distance at the end, and costs [s]: (C,) each."""
        units = np.array([own[0].units for own in runs])
        costs = np.array([sum(t.likely_s for t in own) / len(own) for own in runs])
        mean, sd = model.process.predict(model.points(units, costs))
        expected = log_expected_s(
            mean,
            sd,
            model.process.noise_sd,
            log_cost=np.log(model.likely_s(costs)),
            fractions=np.array(self._history.fractions),
        )
        return expected, mean[:, 0], sd, costs


class Settling:
    """Whether a search has settled, by what is left of its budget."""

    def __init__(self, history: History, learned: Learned, parts: Parts, *, seed: int) -> None:
        self._history, self._learned, self._parts, self._seed = history, learned, parts, seed
        self.chance: tuple[int, float] = (-1, 1.0)
        """The chance that the rest of the budget finds something better, after so many trials."""
        self.at: tuple[float, float] | None = None
        """Share of the budget at which that was small enough, and the chance; None: not yet."""

    @property
    def why(self) -> StopReason | None:
        if self.at is None or (until := self._parts.until) is None:
            return None
        return StopReason.of(StopKind.SETTLED, better_by=until.better_by, chance=self.at[1])

    def is_over(self, spent: float, allowed: Allowed) -> bool:
        """Returns whether nothing better is likely, and the favourites were told apart."""
        until, model = self._parts.until, self._learned.model
        if until is None or model is None or self._history.leader is None:
            return False
        hold_back = self._parts.hold_back if self._parts.repeats else 0.0
        if self.at is None and spent < 1 - hold_back:
            if self.chance[0] != self._history.ended.num:
                self.chance = self._history.ended.num, self._chance(model, until, spent, allowed)
            if self.chance[1] < until.probability_of_better:
                self.at = spent, self.chance[1]
        if self.at is None or spent < self.at[0] / (1 - hold_back):
            return False
        best = self._learned.favourites[0]
        return not self._parts.repeats or best.runs >= self._parts.sure_runs

    @one_thread()
    def _chance(self, model: Model, until: UntilConfig, spent: float, allowed: Allowed) -> float:
        """Returns P(better) with what the budget left pays for; 0 where nothing is allowed."""
        ended, parts = self._history.ended, self._parts
        best = ended.of_id(self._learned.favourites[0].trial_id)
        rng = np.random.default_rng([self._seed, ended.num, 13])
        found = list(chain.from_iterable(candidates(model, NUM_CANDIDATES, rng, allowed)))
        if not found:
            return 0.0
        units = np.array([best.units, *(each.units for each in found)])
        cost_s = np.array([best.likely_s, *(each.cost_s for each in found)])
        points = model.points(units, cost_s)
        drawn = model.process.sample(points, NUM_DRAWS, rng)
        expected = log_expected_s(
            drawn,
            np.zeros(drawn.shape[:2]),
            model.process.noise_sd,
            log_cost=np.log(model.likely_s(cost_s)) if self._history.by_share else None,
            fractions=np.array(self._history.fractions),
        )
        to_beat = float(np.median(expected[:, 0])) + np.log1p(-until.better_by)
        better = (expected[:, 1:] < to_beat) & (model.fits(points[1:]) >= 0.5)
        left = max(1 - parts.hold_back - spent, 0.0) / max(spent, 1e-9)
        num_tried = max(1, int(left * len(ended.configurations())) // parts.sure_runs)
        likeliest = np.argsort(-better.mean(axis=0), kind="stable")[:num_tried]
        return float(better[:, likeliest].any(axis=1).mean())


def _by_their_runs(known: Known) -> Recommended:
    hits, runs = known.hits, len(known.runs)
    # A half each: no number of hits makes the next one certain.
    chance = Interval((hits + 0.5) / (runs + 1), *wilson_interval(hits, runs))
    return known.recommended(known.fastest, chance=chance, expected_s=known.expected_s)
