"""The search policy for time to target: a sampler and a pruner in one pure object.

No Ray, no clock of its own, no randomness but its seed, and nothing that the ledger could not
restore. It differs from a sampler and a pruner for accuracy in:

- **Known costs.** A fixed-length run that could not beat the leader even if it met the target is
  replaced before it costs anything.
- **Censored misses.** A miss says how far off it was (`acquisition`, `optuna_study`).
- **Cheap runs first**, where they say more than they cost (`acquisition`).
- **Early stopping** by caps, rungs and forecasts, with an audit (`early_stopping`).
- **Memory.** What did not fit teaches what does not fit.
- **Exploration.** Every tenth proposal is drawn without the model, which may be wrong.

The sampler `gain` is our own; each of Optuna's can take its place by name.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from scipy.stats import qmc

from tune_speed.core.records import Status
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy import base
from tune_speed.tuning.policy.acquisition import Candidate, Objective, best_candidate
from tune_speed.tuning.policy.base import Leader, Outcome, PriorTrial, Proposal
from tune_speed.tuning.policy.curve import FloatArray
from tune_speed.tuning.policy.curve_table import Expected, distance
from tune_speed.tuning.policy.early_stopping import EarlyStopping
from tune_speed.tuning.policy.encoding import Encoder
from tune_speed.tuning.policy.gaussian_process import one_thread
from tune_speed.tuning.policy.history import WHOLE, History, Trial
from tune_speed.tuning.policy.optuna_study import OptunaStudy
from tune_speed.tuning.policy.settings import Parts

# Points of the Sobol sequence; proposals past them are drawn at random.
NUM_QUASI = 4096
NUM_REPEATED = 3
"""Best trials of other studies that are repeated first."""

Choice = tuple[dict[str, Any], str, Expected | None]
"""A configuration, why it was chosen, and what is expected of it."""


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
        self._history = History(self._encoder, target, cost_of, share_first=parts.share_first)
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

    @property
    def leader(self) -> Leader | None:
        """Shortest time to target so far."""
        return self._history.leader

    def restore(
        self, *, finished: Iterable[tuple[Proposal, Outcome]], unfinished: Iterable[Proposal]
    ) -> None:
        """Takes over a ledger's trials; unfinished ones are proposed again, under their ids."""
        for proposal, outcome in finished:
            self._history.begin(proposal)
            trial = self._history.finish(proposal.trial_id, outcome)
            self._optuna.restore(proposal.params, outcome, y=self._end_of(trial))
        for proposal in unfinished:
            self._history.count(proposal)
            self._again.append(proposal)

    def ask(self) -> Proposal | None:
        """Returns the next configuration; None where no untried one could win."""
        for other in self._optuna.others():
            self._history.add_prior(other)
        proposal = self._again.pop(0) if self._again else None
        if proposal is not None:
            self._optuna.enter(proposal.trial_id, proposal.params)
        else:
            proposal = self._new_proposal()
        if proposal is not None:
            self._history.begin(proposal)
        return proposal

    def report(self, trial_id: str, *, train_s: float, step: int, metric: float) -> str | None:
        """Returns why to stop a running trial, or None to let it continue."""
        trial = self._history.running[trial_id]
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

    def _new_proposal(self) -> Proposal | None:
        number = self._history.num_proposed
        trial_id = f"t{number:04d}"
        if self._sampler != "gain" and number >= len(self._points):
            params = self._optuna.propose(trial_id, lambda p: self._allowed(p) is not None)
            if params is not None:
                return Proposal(trial_id, params, f"{self._sampler}: the sampler's proposal")
        # By its number, so that a resumed search proposes what it would have without the break.
        choice = self._choose(np.random.default_rng([self._seed, number]))
        if choice is None:
            return None
        self._optuna.enter(trial_id, choice[0])
        return Proposal(trial_id, *choice)

    def _choose(self, rng: np.random.Generator) -> Choice | None:
        number, parts, history = self._history.num_proposed, self._parts, self._history
        if number < len(self._points):
            point = self._filled(self._points[number])
            if not history.was_tried(point):
                return point, "a point to evaluate", None
        if self._sampler != "gain":
            return self._evenly(rng, f"spread evenly: {self._sampler} has nothing that could win")
        is_costly = history.spent_s() >= parts.start_runs * history.longest_s()
        is_start = number < parts.num_start and not is_costly
        if is_start or len(history.finished) < min(4, parts.num_start):
            return self._start(rng)
        if parts.explore_every and number % parts.explore_every == 0:
            return self._evenly(rng, "exploration: spread evenly")
        choice = self._by_acquisition(rng)
        return choice or self._evenly(rng, "spread evenly: the model sees no chance")

    def _allowed(self, params: Mapping[str, Any]) -> float | None:
        """Returns the likely cost [s] of a configuration, NaN if unknown, None if too long."""
        if self._history.was_tried(params):
            return None
        cost, leader = self._cost_of(params), self.leader
        if cost is None:
            return math.nan
        is_screened = self._parts.cost and self._history.knows_length and leader is not None
        if is_screened and leader is not None and cost.train_s >= leader.time_to_target_s:
            return None
        return cost.likely_s

    def _start(self, rng: np.random.Generator) -> Choice | None:
        """Returns the cheapest of the next evenly spread configurations whose costs are known."""
        number, size = self._history.num_proposed, self._parts.start_pool
        pool = self._encoder.params(self._quasi[number * size : (number + 1) * size])
        costs = [self._allowed(params) for params in pool]
        known = [(cost, i) for i, cost in enumerate(costs) if cost is not None and cost == cost]
        if len(known) < 2:
            return self._evenly(rng, "start: spread evenly")
        cost_s, i = min(known)
        return pool[i], f"start: spread evenly, {cost_s:.1f} s the cheapest of {len(known)}", None

    def _evenly(self, rng: np.random.Generator, reason: str) -> Choice | None:
        drawn = chain.from_iterable(map(self._encoder.params, self._even_units(rng)))
        params = next((each for each in drawn if self._allowed(each) is not None), None)
        return None if params is None else (params, reason, None)

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
    def _by_acquisition(self, rng: np.random.Generator) -> Choice | None:
        parts, history = self._parts, self._history
        evidence = history.evidence(graded=parts.graded, memory=parts.memory)
        if evidence.fits.sum() < 3:
            return None
        running = sorted(history.running.values(), key=lambda trial: trial.number)
        candidate = best_candidate(
            self._encoder,
            evidence,
            running=(
                np.array([t.units for t in running]).reshape(len(running), self._quasi.shape[1]),
                np.array([t.likely_s for t in running]),
            ),
            objective=self._objective(),
            allowed=self._allowed,
            rng=rng,
            settings=parts.acquisition,
        )
        if candidate is None or (candidate.probes or candidate).expected.chance < parts.no_chance:
            return None
        # A probe carries no expectation: it must not be stopped for its own small chance.
        expected = candidate.expected if candidate.probes is None else None
        return candidate.params, self._reason(candidate), expected

    def _objective(self) -> Objective:
        longest_s = self._history.longest_s()
        leader = self.leader
        best_s = leader.time_to_target_s if leader is not None else 2 * longest_s
        return Objective(
            best_s=best_s if math.isfinite(best_s) else 1.0,
            has_leader=leader is not None,
            at_end=self._history.by_share,
            fractions=self._history.fractions,
        )

    def _reason(self, candidate: Candidate) -> str:
        chance, cost_s, costly = candidate.expected.chance, candidate.cost_s, candidate.probes
        if costly is not None:
            use = "come nearer the target" if self.leader is None else "meet the target"
            return (
                f"probe: {cost_s:.1f} s to see first, whether a run of {costly.cost_s:.1f} s is"
                f" more than {costly.expected.chance:.0%} likely to {use}"
            )
        at = f" at a cost of {cost_s:.1f} s" if math.isfinite(cost_s) else ""
        if self.leader is None:
            return f"gain: {chance:.0%} likely to come nearer the target than any so far{at}"
        time_s = self.leader.time_to_target_s
        return f"gain: {chance:.0%} likely to meet the target{at}, leader {time_s:.1f} s"


def _best_of(prior_trials: Sequence[PriorTrial]) -> list[dict[str, Any]]:
    """Returns the best configurations of other studies: what reached first, then what came near."""

    def rank(trial: PriorTrial) -> tuple[bool, float]:
        outcome, reached = trial.outcome, trial.outcome.status == Status.REACHED
        return not reached, outcome.train_s if reached else -(outcome.best_metric or 0.0)

    return [dict(trial.params) for trial in sorted(prior_trials, key=rank)[:NUM_REPEATED]]
