"""The search policy for time to target: a sampler and a pruner in one pure object.

Unlike those for accuracy, it knows costs beforehand and replaces what could not win, learns from
censored misses and from what did not fit into memory (`acquisition`), counts with runs that differ
(`expected_time`), stops early with an audit (`early_stopping`), and draws every tenth proposal
without the model, which may be wrong.
"""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from tune_speed.core.records import Recommended, Status
from tune_speed.core.words import ProposalKind, ProposalReason, StopReason
from tune_speed.tuning.policy.acquisition import Candidate, Objective, best_candidate
from tune_speed.tuning.policy.base import Leader, Outcome, Parts, PriorTrial, Problem, Proposal
from tune_speed.tuning.policy.curve import distance
from tune_speed.tuning.policy.early_stopping import EarlyStopping
from tune_speed.tuning.policy.encoding import EvenSpread
from tune_speed.tuning.policy.gaussian_process import one_thread
from tune_speed.tuning.policy.history import History
from tune_speed.tuning.policy.learned import Learned, Settling
from tune_speed.tuning.policy.optuna_study import GAIN, OptunaStudy, Sampling
from tune_speed.tuning.policy.related import Prior, Related
from tune_speed.tuning.policy.trials import WHOLE, Trial

NUM_REPEATED = 3
"""Recipes of other studies of the same task that are repeated first."""

Choice = tuple[dict[str, Any], ProposalReason]
"""A configuration, and why it was chosen."""


class TimeToTarget:
    """Proposes, stops and learns from trials. Rebuilt from a ledger by `restore`."""

    _learned_by: type[Learned] = Learned

    def __init__(
        self,
        problem: Problem,
        *,
        sampling: Sampling = GAIN,
        points: Sequence[Mapping[str, Any]] = (),
        prior_trials: Sequence[PriorTrial] = (),
        parts: Parts | None = None,
    ) -> None:
        """Fills in what points, which are tried first, leave out; prior trials are of others."""
        parts = Parts() if parts is None else parts
        self._parts, self._seed = parts, problem.seed
        self._history = History(problem, parts)
        self._encoder = self._history.encoder
        self._spread = EvenSpread(self._encoder, parts, seed=problem.seed)
        self._learned = self._learned_by(self._history, parts, seed=problem.seed)
        self._stopping = EarlyStopping(self._history, parts, seed=problem.seed)
        self._settling = Settling(self._history, self._learned, parts, seed=problem.seed)
        self._sampler = sampling.name
        self._optuna = OptunaStudy(problem, sampling)
        same = [trial for trial in prior_trials if not trial.task]
        others = (trial for trial in prior_trials if trial.task)
        by_time = not (self._history.knows_length or problem.target.best)
        self._related = Related(others, self._encoder, by_time=by_time)
        for trial in same:
            self._history.add_prior(trial)
        self._points = [dict(point) for point in points]
        self._points += Prior(same, self._encoder, by_time).best[:NUM_REPEATED]
        self._again: list[Proposal] = []
        self._wanted: list[Choice] = []
        """What people want tried, and why."""
        self.spent = 0.0

    @property
    def leader(self) -> Leader | None:
        return self._history.leader

    @property
    def favourites(self) -> tuple[Recommended, ...]:
        found = self._learned.favourites
        is_fixed = self._history.knows_length and not self._history.target.best
        if not (self._parts.repeats and self._is_end and is_fixed):
            return found
        # The favourite may have changed too late to be run as often as one must be.
        return tuple(sorted(found, key=lambda each: each.runs < self._parts.sure_runs))

    @property
    def _is_end(self) -> bool:
        return self._settling.at is not None or self.spent >= 1 - self._parts.hold_back

    @property
    def why_settled(self) -> StopReason | None:
        return self._settling.why

    def restore(
        self,
        *,
        finished: Iterable[tuple[Proposal, Outcome]],
        unfinished: Iterable[Proposal],
        num_taken: int = 0,
    ) -> None:
        self._history.num_proposed = max(self._history.num_proposed, num_taken)
        for proposal, outcome in finished:
            self._leave_out(proposal)
            self._history.begin(proposal)
            trial = self._history.finish(proposal.trial_id, outcome)
            self._optuna.restore(proposal.params, outcome, y=self._end_of(trial))
        for proposal in unfinished:
            self._leave_out(proposal)
            self._history.count(proposal)
            self._again.append(proposal)

    def _leave_out(self, proposal: Proposal) -> None:
        # Ledgers of older versions have no reason.
        if proposal.reason.kind in (ProposalKind.POINT, ProposalKind.NONE):
            chosen = proposal.params.items()
            match = next((p for p in self._points if p.items() <= chosen), None)
            self._points = [point for point in self._points if point is not match]

    def observe(self, proposals: Iterable[Proposal], *, running: Container[str]) -> None:
        """Takes note of trials that somebody else began; all that are not `running` are gone."""
        history = self._history
        for trial_id in [each for each in history.running if each not in running]:
            self.withdraw(trial_id)
        for proposal in proposals:
            known = history.running.get(proposal.trial_id)
            if known is None or known.proposal.params != proposal.params:
                history.begin(proposal)

    def num_reports(self, trial_id: str) -> int:
        return len(self._history.running[trial_id].clock)

    def ask(self, number: int | None = None) -> Proposal | None:
        """Returns the next configuration, as trial `number` where others number the trials."""
        if number is not None:
            self._history.num_proposed = number
        for other in self._optuna.others():
            self._history.add_prior(other)
        self._learned.update()
        proposal = self._again.pop(0) if self._again else None
        if proposal is not None:
            self._optuna.enter(proposal.trial_id, proposal.params)
        elif self._wanted or self._points or not self._settling.is_over(self.spent, self._allowed):
            proposal = self._new_proposal()
        if proposal is not None:
            self._history.begin(proposal)
        return proposal

    def try_next(self, point: Mapping[str, Any], *, reason: ProposalReason) -> None:
        self._wanted.append((dict(point), reason))

    def report(
        self, trial_id: str, *, train_s: float, step: int, metric: float
    ) -> StopReason | None:
        self._learned.update()
        trial = self._history.running[trial_id]
        # A training function's clock is told anew once its steps were timed.
        trial.clock[:] = [min(each, train_s) for each in trial.clock]
        trial.clock.append(train_s)
        trial.metric.append(metric)
        trial.step = step
        return self._stopping.reason(trial)

    def finish(self, trial_id: str, outcome: Outcome) -> None:
        trial = self._history.finish(trial_id, outcome)
        self._optuna.finish(trial_id, outcome, y=self._end_of(trial))

    def retry(self, proposal: Proposal) -> None:
        self.withdraw(proposal.trial_id)
        self._again.append(proposal)

    def withdraw(self, trial_id: str) -> None:
        del self._history.running[trial_id]
        self._optuna.withdraw(trial_id)

    def _end_of(self, trial: Trial) -> float:
        best, status = trial.ended.best_metric, trial.ended.status
        if best is None or status in (Status.DIVERGED, Status.OOM, Status.FAILED):
            return self._history.start_y
        # `gain` proposes without Optuna, so the forecast would serve nobody.
        if status in WHOLE or self._sampler == "gain":
            return float(distance(best, self._history.target.value))
        return self._history.forecast_end(trial)

    def _new_proposal(self) -> Proposal | None:
        number = self._history.num_proposed
        trial_id = f"t{number:04d}"
        # By its number, so that a resumed search proposes what it would have without the break.
        rng, is_given = np.random.default_rng([self._seed, number]), bool(self._points)
        if self._wanted:
            point, reason = self._wanted.pop(0)
            wanted = Proposal(trial_id, self._spread.filled(point, number), reason)
            self._optuna.enter(trial_id, wanted.params)
            return wanted
        choice = None if is_given else self._repeat(rng)
        if choice is None and self._sampler != "gain" and not is_given:
            params = self._optuna.propose(trial_id, lambda p: self._allowed(p) is not None)
            if params is not None:
                reason = ProposalReason.of(ProposalKind.SAMPLER, sampler=self._sampler)
                return Proposal(trial_id, params, reason)
        choice = choice or self._choose(rng)
        if choice is None:
            return None
        self._optuna.enter(trial_id, choice[0])
        return Proposal(trial_id, *choice)

    def _choose(self, rng: np.random.Generator) -> Choice | None:
        if self._points:
            point = self._spread.filled(self._points.pop(0), self._history.num_proposed)
            if not self._history.was_tried(point):
                return point, ProposalReason.of(ProposalKind.POINT)
        choice = self._something_new(rng)
        if choice is None and self._parts.repeats:
            # A favourite that nothing can beat may have been run once.
            choice = self._by_acquisition(rng, only_again=True) or self._favourite_again()
        return choice

    def _something_new(self, rng: np.random.Generator) -> Choice | None:
        number, parts, history = self._history.num_proposed, self._parts, self._history
        if self._sampler != "gain":
            return self._evenly(rng, ProposalKind.NOTHING_COULD_WIN, sampler=self._sampler)
        is_costly = history.ended.spent_s >= parts.start_runs * history.longest_s()
        is_start = number < parts.num_start and not is_costly
        if is_start or history.ended.num < min(4, parts.num_start):
            return self._of_a_relative(number) or self._start(rng)
        if parts.explore_every and number % parts.explore_every == 0:
            return self._evenly(rng, ProposalKind.EXPLORATION)
        is_spread = parts.spread_every > 0 and number % parts.spread_every == 0
        choice = self._by_acquisition(rng, is_spread=is_spread)
        return choice or self._evenly(rng, ProposalKind.NO_CHANCE)

    def _allowed(self, params: Mapping[str, Any]) -> float | None:
        """Returns the likely cost [s] of a configuration, NaN if unknown, None if too long."""
        if self._history.was_tried(params):
            return None
        cost = self._history.cost_of(params)
        if cost is None:
            return math.nan
        has_bound = self.leader is not None or self._history.target.best
        if self._history.knows_length and has_bound and cost.train_s >= self._history.to_beat_s():
            return None
        return cost.likely_s

    def _of_a_relative(self, number: int) -> Choice | None:
        # The start is spread evenly, too: what is related may not be alike.
        every = self._parts.own_start_every
        if number % every == every - 1:
            return None
        return self._related.choice(
            self._history.ended.trials, lambda params: self._allowed(params) is not None
        )

    def _start(self, rng: np.random.Generator) -> Choice | None:
        pool = self._spread.pool(self._history.num_proposed)
        costs = [self._allowed(params) for params in pool]
        known = [(cost, i) for i, cost in enumerate(costs) if cost is not None and cost == cost]
        if len(known) < 2:
            return self._evenly(rng, ProposalKind.START)
        cost_s, i = min(known)
        return pool[i], ProposalReason.of(ProposalKind.START, cost_s=cost_s, num=len(known))

    def _evenly(
        self, rng: np.random.Generator, kind: ProposalKind, **figures: str
    ) -> Choice | None:
        units = self._spread.units(self._history.num_proposed, rng)
        drawn = chain.from_iterable(map(self._encoder.params, units))
        params = next((each for each in drawn if self._allowed(each) is not None), None)
        return None if params is None else (params, ProposalReason.of(kind, **figures))

    @one_thread()
    def _by_acquisition(
        self,
        rng: np.random.Generator,
        *,
        only_again: bool = False,
        is_end: bool = False,
        is_spread: bool = False,
    ) -> Choice | None:
        parts, history, model = self._parts, self._history, self._learned.model
        if model is None:
            return None
        objective = self._objective(is_spread=is_spread)
        running = sorted(history.running.values(), key=lambda trial: trial.number)
        units = np.array([t.units for t in running]).reshape(
            len(running), len(self._encoder.parameters)
        )
        candidate = best_candidate(
            model,
            objective._replace(only_again=only_again, is_end=is_end),
            running=(units, np.array([t.likely_s for t in running])),
            allowed=self._allowed,
            tried=self._learned.tried if parts.repeats else (),
            rng=rng,
        )
        if candidate is None:
            return None
        if history.was_tried(candidate.params):
            return candidate.params, self._reason_again(candidate.params)
        is_hopeless = candidate.chance < parts.acquisition.least_chance
        return None if is_hopeless else (candidate.params, self._reason(candidate))

    def _objective(self, *, is_spread: bool) -> Objective:
        history, has_leader = self._history, self.leader is not None
        best_s = history.to_beat_s() * (1 if has_leader else 2)
        return Objective(
            best_s=best_s if math.isfinite(best_s) else 1.0,
            has_leader=has_leader,
            at_end=history.by_share,
            fractions=history.fractions,
            brackets=history.brackets() if is_spread else None,
        )

    def _reason_again(self, params: Mapping[str, Any]) -> ProposalReason:
        runs = self._history.ended.runs_of(params)
        figures = {"run": len(runs) + 1, "trial_id": runs[0].proposal.trial_id}
        if not self._history.target.best:
            figures |= {"hits": sum(trial.met for trial in runs), "runs": len(runs)}
        return ProposalReason.of(ProposalKind.AGAIN, **figures)

    def _repeat(self, rng: np.random.Generator) -> Choice | None:
        is_end = self._is_end
        if not self._parts.repeats or self.leader is None:
            return None
        if not self._history.knows_length:
            return self._again_free(is_end=is_end)
        if not is_end:
            return None
        return self._favourite_again() or self._by_acquisition(rng, is_end=True)

    def _favourite_again(self) -> Choice | None:
        """Returns what is recommended, until it was run as often as it must be; None: it was."""
        favourites = self._learned.favourites
        if not favourites:
            return None
        params = self._history.ended.of_id(favourites[0].trial_id).proposal.params
        if self._history.times_tried(params) >= self._parts.sure_runs:
            return None
        return params, self._reason_again(params)

    def _again_free(self, *, is_end: bool) -> Choice | None:
        """Returns what to run again where the length is free, one run at a time; None: nothing.

        That is the favourite, until it was run a few times; at the end, what may be the best.
        """
        known = sorted(self._history.ended.known(), key=lambda each: each.cautious_s)
        if not is_end:
            times = self._history.times_tried
            known = [each for each in known[:1] if times(each.params) < self._parts.sure_runs]
        running = [trial.proposal.params for trial in self._history.running.values()]
        free = [each for each in known if each.params not in running]
        if not free:
            return None
        params = min(free, key=lambda each: each.hopeful_s).params
        return params, self._reason_again(params)

    def _reason(self, candidate: Candidate) -> ProposalReason:
        cost_s = candidate.cost_s if math.isfinite(candidate.cost_s) else None
        figures = {"chance": candidate.chance, "cost_s": cost_s}
        if self._history.target.best:
            return ProposalReason.of(ProposalKind.BETTER_END, **figures)
        if self.leader is None:
            return ProposalReason.of(ProposalKind.NEARER, **figures)
        to_beat_s = self._history.to_beat_s()
        return ProposalReason.of(ProposalKind.GAIN, to_beat_s=to_beat_s, **figures)
