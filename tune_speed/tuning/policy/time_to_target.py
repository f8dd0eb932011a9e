"""The search policy for time to target: a sampler and a pruner in one pure object.

No Ray, no clock of its own, no randomness but its seed, and nothing that the ledger could not
restore. It differs from a sampler and a pruner for accuracy in:

- **Known costs.** A fixed-length run that could not beat the leader even if it met the target is
  replaced before it costs anything.
- **Censored misses.** A miss says how far off it was (`acquisition`, `optuna_study`).
- **Noise.** Runs of one configuration differ: what is minimised is the expected time with restarts
  (`expected_time`), what was tried competes with what was not, and the end of the budget tells the
  favourites apart.
- **Early stopping** by caps and rungs, with an audit (`early_stopping`).
- **Memory.** What did not fit teaches what does not fit.
- **Exploration.** Every tenth proposal is drawn without the model, which may be wrong.

The sampler `gain` is our own; each of Optuna's can take its place by name.
"""

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from scipy.special import ndtr
from scipy.stats import qmc

from tune_speed.core.records import Recommended, Status
from tune_speed.core.stats import wilson_interval
from tune_speed.core.words import ProposalKind, ProposalReason, StopKind, StopReason
from tune_speed.study.settings import UntilConfig
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy import base
from tune_speed.tuning.policy.acquisition import Candidate, Model, Objective, best_candidate
from tune_speed.tuning.policy.base import Leader, Outcome, PriorTrial, Proposal
from tune_speed.tuning.policy.curve import FloatArray
from tune_speed.tuning.policy.curve_table import distance
from tune_speed.tuning.policy.early_stopping import EarlyStopping
from tune_speed.tuning.policy.encoding import Encoder
from tune_speed.tuning.policy.expected_time import doubt, log_expected_s
from tune_speed.tuning.policy.gaussian_process import one_thread
from tune_speed.tuning.policy.history import WHOLE, History, Known, Trial
from tune_speed.tuning.policy.optuna_study import OptunaStudy
from tune_speed.tuning.policy.outlook import chance_of_better
from tune_speed.tuning.policy.settings import Parts

# Points of the Sobol sequence; proposals past them are drawn at random.
NUM_QUASI = 4096
NUM_FAVOURITES = 100
NUM_REPEATED = 3
"""Best trials of other studies that are repeated first."""

Choice = tuple[dict[str, Any], ProposalReason]
"""A configuration, and why it was chosen."""


class TimeToTarget:
    """Proposes, stops and learns from trials. Rebuilt from a ledger by `restore`."""

    def __init__(
        self,
        *,
        space: SearchSpace,
        target: base.SearchTarget,
        cost_of: base.CostOf,
        seed: int,
        sampler: str = "gain",
        points: Sequence[Mapping[str, Any]] = (),
        prior_trials: Sequence[PriorTrial] = (),
        storage: str | None = None,
        study_name: str = "",
        parts: Parts | None = None,
    ) -> None:
        """Begins without any trial.

        The sampler is `gain`, or one of Optuna's by name. What the points, which are tried first,
        leave out is filled in. `prior_trials` are of other studies. The Optuna study has the name
        `study_name` in `storage` (see `search.storage`), or is in memory. `parts` says what to
        leave out; None: nothing.
        """
        parts = Parts() if parts is None else parts
        self._space, self._sampler, self._parts = space, sampler, parts
        self._seed, self._cost_of = seed, cost_of
        self._encoder = Encoder(space)
        self._history = History(self._encoder, target, cost_of, parts)
        self._stopping = EarlyStopping(self._history, parts, seed=seed)
        self._optuna = OptunaStudy(
            space=space,
            target=target,
            sampler=sampler,
            seed=seed,
            storage=storage,
            study_name=study_name,
            graded=parts.graded,
        )
        for trial in prior_trials:
            self._history.add_prior(trial)
        self._points = [dict(point) for point in points] + _best_of(prior_trials)
        # Evenly spread units (N, P). SciPy's Sobol refuses no dimensions at all.
        num_dims = len(space.parameters)
        sobol = qmc.Sobol(max(num_dims, 1), scramble=True, rng=np.random.default_rng([seed, 7]))
        self._quasi: FloatArray = sobol.random(NUM_QUASI)[:, :num_dims]
        self._again: list[Proposal] = []
        self._wanted: list[Choice] = []
        """What people want tried, and why."""
        self.spent = 0.0
        self._known: tuple[int, Model | None] = (-1, None)
        self._tried: list[Candidate] = []
        """Configurations of the least expected times, which may be run again."""
        self._outlook: tuple[int, float] = (-1, 1.0)
        """The chance that the rest of the budget finds something better, after so many trials."""
        self._settled: tuple[float, float] | None = None
        """Share of the budget at which that was small enough, and the chance; None: not yet."""

    @property
    def leader(self) -> Leader | None:
        """Shortest time to target so far."""
        return self._history.leader

    @property
    def favourites(self) -> tuple[Recommended, ...]:
        """Configurations that met the target, best first: at most a hundred."""
        self._learn()
        return self._history.favourites or base.alone(self.leader, self._history.ends)

    def restore(
        self,
        *,
        finished: Iterable[tuple[Proposal, Outcome]],
        unfinished: Iterable[Proposal],
        num_taken: int = 0,
    ) -> None:
        """Takes over a ledger's trials; unfinished ones are proposed again, under their ids."""
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
        """Drops the point that a proposal was, so that those added since are tried next."""
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
        """Returns how many reports of a running trial were taken in."""
        return len(self._history.running[trial_id].clock)

    def ask(self, number: int | None = None) -> Proposal | None:
        """Returns the next configuration; None where no untried one could win.

        It runs as trial `number`, where somebody else numbers them.
        """
        if number is not None:
            self._history.num_proposed = number
        for other in self._optuna.others():
            self._history.add_prior(other)
        self._learn()
        proposal = self._again.pop(0) if self._again else None
        if proposal is not None:
            self._optuna.enter(proposal.trial_id, proposal.params)
        elif self._wanted or self._points or not self._has_settled():
            proposal = self._new_proposal()
        if proposal is not None:
            self._history.begin(proposal)
        return proposal

    def try_next(self, point: Mapping[str, Any], *, reason: ProposalReason) -> None:
        """Proposes a configuration next, tried before or not; fills in what it leaves out."""
        self._wanted.append((dict(point), reason))

    def report(
        self, trial_id: str, *, train_s: float, step: int, metric: float
    ) -> StopReason | None:
        """Returns why to stop a running trial, or None to let it continue."""
        self._learn()
        trial = self._history.running[trial_id]
        # A training function's clock is told anew once its steps were timed.
        trial.clock[:] = [min(each, train_s) for each in trial.clock]
        trial.clock.append(train_s)
        trial.metric.append(metric)
        trial.step = step
        return self._stopping.reason(trial)

    def finish(self, trial_id: str, outcome: Outcome) -> None:
        """Learns from a trial that ended."""
        trial = self._history.finish(trial_id, outcome)
        self._optuna.finish(trial_id, outcome, y=self._end_of(trial))

    def retry(self, proposal: Proposal) -> None:
        """Takes back a trial that ended without an outcome; it is proposed again."""
        self.withdraw(proposal.trial_id)
        self._again.append(proposal)

    def withdraw(self, trial_id: str) -> None:
        """Takes back a trial that ended without an outcome and is not run again for now."""
        del self._history.running[trial_id]
        self._optuna.withdraw(trial_id)

    def _end_of(self, trial: Trial) -> float:
        """Returns the distance at which a trial's curve ended, or is forecast to end."""
        assert trial.outcome is not None
        best, status = trial.outcome.best_metric, trial.outcome.status
        if best is None or status in (Status.DIVERGED, Status.OOM, Status.FAILED):
            return self._history.start_y
        # `gain` proposes without Optuna, so the forecast would serve nobody.
        if status in WHOLE or self._sampler == "gain":
            return float(distance(best, self._history.target.value))
        return self._history.forecast_end(trial)

    @property
    def why_settled(self) -> StopReason | None:
        """Why nothing is proposed any more although the budget is not used up."""
        if self._settled is None or (until := self._parts.until) is None:
            return None
        figures = {"better_by": until.better_by, "chance": self._settled[1]}
        return StopReason.of(StopKind.SETTLED, **figures)

    def _has_settled(self) -> bool:
        """Whether nothing better is likely to be found, and the favourites were told apart."""
        until = self._parts.until
        if until is None or self.leader is None or self._known[1] is None:
            return False
        hold_back = self._parts.hold_back if self._parts.repeats else 0.0
        if self._settled is None and self.spent < 1 - hold_back:
            chance = self._chance_of_better(until)
            if chance < until.probability_of_better:
                self._settled = self.spent, chance
        return self._settled is not None and self.spent >= self._settled[0] / (1 - hold_back)

    @one_thread()
    def _chance_of_better(self, until: UntilConfig) -> float:
        """Returns the chance that what the budget left pays for finds something better."""
        history, model = self._history, self._known[1]
        if self._outlook[0] != history.num_finished and model is not None:
            best_id = self.favourites[0].trial_id
            best = next(t for t in history.finished if t.proposal.trial_id == best_id)
            left = max(1 - self._parts.hold_back - self.spent, 0.0) / max(self.spent, 1e-9)
            chance = chance_of_better(
                self._encoder,
                model,
                self._evidence,
                Candidate(best.units, best.proposal.params, best.likely_s),
                fractions=history.fractions,
                at_end=history.by_share,
                allowed=self._allowed,
                num_tried=max(
                    1, int(left * len(history.configurations())) // self._parts.sure_runs
                ),
                better_by=until.better_by,
                rng=np.random.default_rng([self._seed, history.num_finished, 13]),
            )
            self._outlook = history.num_finished, chance
        return self._outlook[1]

    def _new_proposal(self) -> Proposal | None:
        number = self._history.num_proposed
        trial_id = f"t{number:04d}"
        # By its number, so that a resumed search proposes what it would have without the break.
        rng, is_given = np.random.default_rng([self._seed, number]), bool(self._points)
        if self._wanted:
            point, reason = self._wanted.pop(0)
            wanted = Proposal(trial_id, self._filled(point), reason)
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
            point = self._filled(self._points.pop(0))
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
        is_costly = history.spent_s >= parts.start_runs * history.longest_s()
        is_start = number < parts.num_start and not is_costly
        if is_start or history.num_finished < min(4, parts.num_start):
            return self._start(rng)
        if parts.explore_every and number % parts.explore_every == 0:
            return self._evenly(rng, ProposalKind.EXPLORATION)
        choice = self._by_acquisition(rng)
        return choice or self._evenly(rng, ProposalKind.NO_CHANCE)

    def _allowed(self, params: Mapping[str, Any]) -> float | None:
        """Returns the likely cost [s] of a configuration, NaN if unknown, None if too long."""
        if self._history.was_tried(params):
            return None
        cost = self._cost_of(params)
        if cost is None:
            return math.nan
        is_screened = self._parts.cost and self._history.knows_length
        is_screened = is_screened and (self.leader is not None or self._history.target.best)
        if is_screened and cost.train_s >= self._history.to_beat_s():
            return None
        return cost.likely_s

    def _start(self, rng: np.random.Generator) -> Choice | None:
        """Returns the cheapest of the next evenly spread configurations whose costs are known."""
        number, size = self._history.num_proposed, self._parts.start_pool
        pool = self._encoder.params(self._quasi[number * size : (number + 1) * size])
        costs = [self._allowed(params) for params in pool]
        known = [(cost, i) for i, cost in enumerate(costs) if cost is not None and cost == cost]
        if len(known) < 2:
            return self._evenly(rng, ProposalKind.START)
        cost_s, i = min(known)
        return pool[i], ProposalReason.of(ProposalKind.START, cost_s=cost_s, num=len(known))

    def _evenly(
        self, rng: np.random.Generator, kind: ProposalKind, **figures: str
    ) -> Choice | None:
        drawn = chain.from_iterable(map(self._encoder.params, self._even_units(rng)))
        params = next((each for each in drawn if self._allowed(each) is not None), None)
        return None if params is None else (params, ProposalReason.of(kind, **figures))

    def _even_units(self, rng: np.random.Generator) -> Iterator[FloatArray]:
        """Yields units (N, P), the next of the sequence first, then more and more at random."""
        parts = self._parts
        # The start has used `start_pool` of the sequence for each of its proposals.
        number = self._history.num_proposed + parts.num_start * (parts.start_pool - 1)
        if number < NUM_QUASI:
            yield self._quasi[number : number + 1]
        for size in (8, 64, 1024):
            yield rng.random((size, self._quasi.shape[1]))

    def _filled(self, point: Mapping[str, Any]) -> dict[str, Any]:
        units = self._quasi[self._history.num_proposed % NUM_QUASI].copy()
        given = self._encoder.units(point)
        for i, parameter in enumerate(self._space.parameters):
            if parameter.name in point:
                units[i] = given[i]
        filled = self._encoder.params(units[None, :])[0]
        # Decoding a unit rounds; a point to evaluate is run exactly as it was given.
        return {**filled, **{name: point[name] for name in filled if name in point}}

    @one_thread()
    def _by_acquisition(
        self, rng: np.random.Generator, *, only_again: bool = False, is_end: bool = False
    ) -> Choice | None:
        parts, history, model = self._parts, self._history, self._known[1]
        if model is None:
            return None
        running = sorted(history.running.values(), key=lambda trial: trial.number)
        units = np.array([t.units for t in running]).reshape(len(running), self._quasi.shape[1])
        candidate = best_candidate(
            self._encoder,
            model,
            self._evidence,
            running=(units, np.array([t.likely_s for t in running])),
            objective=self._objective(only_again=only_again, is_end=is_end),
            allowed=self._allowed,
            tried=self._tried if parts.repeats else (),
            rng=rng,
            settings=parts.acquisition,
        )
        if candidate is None:
            return None
        if history.was_tried(candidate.params):
            return candidate.params, self._reason_again(candidate.params)
        is_hopeless = candidate.chance < parts.no_chance
        return None if is_hopeless else (candidate.params, self._reason(candidate))

    def _objective(self, *, only_again: bool, is_end: bool) -> Objective:
        history, has_leader = self._history, self.leader is not None
        best_s = history.to_beat_s() * (1 if has_leader else 2)
        return Objective(
            best_s=best_s if math.isfinite(best_s) else 1.0,
            has_leader=has_leader,
            at_end=history.by_share,
            fractions=history.fractions,
            only_again=only_again,
            is_end=is_end,
        )

    def _learn(self) -> None:
        """Fits the model to what has finished, and finds what is recommended."""
        history, parts = self._history, self._parts
        number = history.num_finished
        if self._known[0] == number:
            return
        with one_thread():
            self._evidence = history.evidence(graded=parts.graded, memory=parts.memory)
            model = None
            if self._evidence.fits.sum() >= 3:
                model = Model(
                    self._encoder,
                    self._evidence,
                    has_cost=history.by_share,
                    settings=parts.acquisition,
                    rng=np.random.default_rng([self._seed, number, 11]),
                )
            self._known = number, model
            history.favourites, self._tried, known = (), [], history.known()
            if known and history.knows_length and model is not None:
                history.favourites = self._by_the_model(model, known)
            elif known and not history.target.best:
                favourites = _by_their_runs(known)
                history.favourites = favourites[:1] if history.knows_length else favourites

    def _by_the_model(self, model: Model, known: Sequence[Known]) -> tuple[Recommended, ...]:
        runs = list(self._history.configurations().values())
        expected, mean, sd, costs = self._log_expected(model, runs)
        # What did not fit has no distance that says how good it is, and will not fit again.
        fit = [i for i in np.argsort(expected, kind="stable") if not any(t.is_oom for t in runs[i])]
        self._tried = [
            Candidate(runs[i][0].units, runs[i][0].proposal.params, float(costs[i]))
            for i in fit[:16]
        ]
        met = [i for i, own in enumerate(runs) if any(trial.met for trial in own)]
        expected, mean, sd = expected[met], mean[met], sd[met]
        noise_sd = max(model.process.noise_sd, 1e-9)
        chance = ndtr(mean / np.hypot(sd, noise_sd))
        low, high = (ndtr((mean + z * sd) / noise_sd) for z in (-1.96, 1.96))
        order = np.argsort(expected, kind="stable")[:NUM_FAVOURITES]
        time_s = np.exp(expected - doubt(chance))
        return tuple(
            _recommended(known[i], chance[i], (low[i], high[i]), expected_s=time_s[i])
            for i in order
        )

    def _log_expected(
        self, model: Model, runs: Sequence[Sequence[Trial]]
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Returns the logarithms of the expected times [s] of configurations: (C,).

        Next to them, of their distance at the end, the mean and what the model does not know of it,
        and what a run costs [s]. The length is known.
        """
        units = np.array([own[0].units for own in runs])
        costs = np.array([sum(t.likely_s for t in own) / len(own) for own in runs])
        mean, sd = model.process.predict(model.points(units, costs))
        expected = log_expected_s(
            mean,
            np.hypot(sd, model.process.noise_sd),
            log_cost=np.log(model.likely_s(costs)),
            fractions=np.array(self._history.fractions),
        )
        return expected, mean[:, 0], sd, costs

    def _reason_again(self, params: Mapping[str, Any]) -> ProposalReason:
        runs = self._history.runs_of(params)
        figures = {"run": len(runs) + 1, "trial_id": runs[0].proposal.trial_id}
        if not self._history.target.best:
            figures |= {"hits": sum(trial.met for trial in runs), "runs": len(runs)}
        return ProposalReason.of(ProposalKind.AGAIN, **figures)

    def _repeat(self, rng: np.random.Generator) -> Choice | None:
        """Returns what must be run again before anything new is."""
        is_end = self._settled is not None or self.spent >= 1 - self._parts.hold_back
        if not self._parts.repeats or self.leader is None:
            return None
        if not self._history.knows_length:
            return self._again_free(is_end=is_end)
        if not is_end:
            return None
        return self._favourite_again() or self._by_acquisition(rng, is_end=True)

    def _favourite_again(self) -> Choice | None:
        """Returns what is recommended, until it was run as often as it must be; None: it was."""
        if not self.favourites:
            return None
        best, proposals = self.favourites[0].trial_id, (t.proposal for t in self._history.finished)
        params = next(proposal.params for proposal in proposals if proposal.trial_id == best)
        if self._history.times_tried(params) >= self._parts.sure_runs:
            return None
        return params, self._reason_again(params)

    def _again_free(self, *, is_end: bool) -> Choice | None:
        """Returns what to run again where the length is free; None: nothing.

        That is the favourite, until it was run a few times; at the end of the search, whatever may
        be better than all others. Of each, one run at a time.
        """
        known = sorted(self._history.known(), key=lambda each: each.cautious_s)
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


def _by_their_runs(known: Sequence[Known]) -> tuple[Recommended, ...]:
    best = sorted(known, key=lambda each: each.cautious_s)[:NUM_FAVOURITES]
    counts = [(each, each.hits, len(each.runs)) for each in best]
    return tuple(
        _recommended(each, hits / runs, wilson_interval(hits, runs), expected_s=each.expected_s)
        for each, hits, runs in counts
    )


def _recommended(
    known: Known, chance: float, interval: tuple[float, float], *, expected_s: float
) -> Recommended:
    return Recommended(
        trial_id=known.fastest,
        runs=len(known.runs),
        hits=known.hits,
        chance=float(chance),
        chance_low=float(interval[0]),
        chance_high=float(interval[1]),
        expected_s=float(expected_s),
    )


def _best_of(prior_trials: Sequence[PriorTrial]) -> list[dict[str, Any]]:
    """Returns the best configurations of other studies: what reached first, then what came near."""

    def rank(trial: PriorTrial) -> tuple[bool, float]:
        outcome, reached = trial.outcome, trial.outcome.status == Status.REACHED
        return not reached, outcome.train_s if reached else -(outcome.best_metric or 0.0)

    return [dict(trial.params) for trial in sorted(prior_trials, key=rank)[:NUM_REPEATED]]
