"""Ray Tune as its documentation shows it: `OptunaSearch` and `AsyncHyperBandScheduler`, unchanged.

The searcher minimises the time to target; as long as that is not met, a large penalty is reported
in its place. The scheduler (ASHA) compares the metric after equal numbers of evaluations, with
Ray's defaults: from the first one on, factor 4, one bracket. Both are Ray's own objects; this only
calls them as Tune's controller does. One thing is set: `max_t`, so high that the scheduler never
ends a trial for its length alone.
"""

import math
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from optuna.trial import TrialState, create_trial
from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler
from ray.tune.search.optuna import OptunaSearch

from tune_speed.core.records import Status
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.baselines.plain import PENALTY_S, penalised_s
from tune_speed.tuning.policy.base import (
    Leader,
    Outcome,
    Proposal,
    SearchTarget,
    better,
    trial_number,
)
from tune_speed.tuning.policy.optuna_space import distributions, suggest
from tune_speed.tuning.policy.samplers import hush_optuna

TIME = "time_to_target_s"
METRIC = "metric"
ITERATION = "training_iteration"
MAX_EVALUATIONS = 100_000


class Vanilla:
    """Ray's searcher and scheduler behind the seam of a policy."""

    def __init__(self, *, space: SearchSpace, goal: SearchTarget, seed: int) -> None:
        self._space, self._goal = space, goal
        hush_optuna()
        self._searcher = OptunaSearch(space=self._suggest, metric=TIME, mode="min", seed=seed)
        self._scheduler = AsyncHyperBandScheduler(
            time_attr=ITERATION, metric=METRIC, mode="max", max_t=MAX_EVALUATIONS
        )
        self._running: dict[str, SimpleNamespace] = {}
        self._num_results: dict[str, int] = {}
        self._stopped: set[str] = set()
        self._again: list[Proposal] = []
        self._num_proposed = 0
        self.leader: Leader | None = None

    def _suggest(self, trial: Any) -> None:
        suggest(self._space, trial)

    def restore(
        self,
        *,
        finished: Iterable[tuple[Proposal, Outcome]],
        unfinished: Iterable[Proposal],
    ) -> None:
        """Takes over a ledger's trials; unfinished ones are proposed again.

        Ray's own restore brings neither the scheduler's rungs nor the last tells back; here both
        are told anew.
        """
        for proposal, outcome in finished:
            self._count(proposal)
            self._searcher._ot_study.add_trial(self._as_optuna_trial(proposal.params, outcome))
            self._begin(proposal.trial_id)
            # Whatever the rungs say now, in the order of ends: these values were reported then.
            for index, value in enumerate(outcome.curve.metric):
                self._is_stopped(proposal.trial_id, index, float(value))
            self._end_in_scheduler(proposal.trial_id, outcome, is_stopped=False)
            self.leader = better(self.leader, proposal.trial_id, outcome)
        for proposal in unfinished:
            self._count(proposal)
            self._again.append(proposal)

    def ask(self) -> Proposal:
        """Returns the searcher's next configuration."""
        if self._again:
            proposal = self._again.pop(0)
            self._searcher._ot_study.enqueue_trial(self._space.read(proposal.params))
            self._searcher.suggest(proposal.trial_id)
        else:
            trial_id = f"t{self._num_proposed:04d}"
            self._searcher.suggest(trial_id)
            # What it returns is unflattened at every `/` of a name.
            params = self._searcher._ot_trials[trial_id].params
            proposal = Proposal(trial_id, self._space.read(params), "OptunaSearch's proposal")
            self._count(proposal)
        self._begin(proposal.trial_id)
        return proposal

    def report(self, trial_id: str, *, train_s: float, step: int, metric: float) -> str | None:
        """Passes a result to scheduler and searcher as Tune's controller does."""
        index = self._num_results[trial_id]
        self._num_results[trial_id] += 1
        if self._is_stopped(trial_id, index, metric):
            self._stopped.add(trial_id)
            return f"stopped at {train_s:.1f} s: below ASHA's cutoff after {index + 1} evaluations"
        self._searcher.on_trial_result(trial_id, self._result(index, metric))
        return None

    def finish(self, trial_id: str, outcome: Outcome) -> None:
        """Passes a trial's end on. One that failed or had no memory has no result, as in Tune."""
        self.leader = better(self.leader, trial_id, outcome)
        is_stopped = trial_id in self._stopped
        self._end_in_scheduler(trial_id, outcome, is_stopped=is_stopped)
        if outcome.status in _ERRORS:
            self._searcher.on_trial_complete(trial_id, error=True)
            return
        self._searcher.on_trial_complete(trial_id, {TIME: penalised_s(outcome)})

    def retry(self, proposal: Proposal) -> None:
        """Takes back a trial; it is proposed again."""
        self.withdraw(proposal.trial_id)
        self._again.append(proposal)

    def withdraw(self, trial_id: str) -> None:
        """Takes back a trial."""
        self._searcher.on_trial_complete(trial_id, error=True)
        # Else it would take a trial that comes again under this id for the one that has ended.
        del self._searcher._ot_trials[trial_id]
        self._searcher._completed_trials.discard(trial_id)
        self._scheduler.on_trial_remove(None, self._running.pop(trial_id))

    def _count(self, proposal: Proposal) -> None:
        self._num_proposed = max(self._num_proposed, trial_number(proposal.trial_id) + 1)

    def _begin(self, trial_id: str) -> None:
        self._running[trial_id] = SimpleNamespace(trial_id=trial_id)
        self._num_results[trial_id] = 0
        self._stopped.discard(trial_id)
        self._scheduler.on_trial_add(None, self._running[trial_id])

    def _is_stopped(self, trial_id: str, index: int, metric: float) -> bool:
        if math.isnan(metric):
            return False  # As ASHA has it, which warns where a rung has nothing else.
        trial, result = self._running[trial_id], self._result(index, metric)
        action = self._scheduler.on_trial_result(None, trial, result)
        return bool(action == TrialScheduler.STOP)

    def _end_in_scheduler(self, trial_id: str, outcome: Outcome, *, is_stopped: bool) -> None:
        trial = self._running.pop(trial_id)
        values = outcome.curve.metric
        if outcome.status in _ERRORS or is_stopped or not len(values) or math.isnan(values[-1]):
            self._scheduler.on_trial_remove(None, trial)
            return
        result = self._result(len(values) - 1, float(values[-1]))
        self._scheduler.on_trial_complete(None, trial, result)

    @staticmethod
    def _result(index: int, metric: float) -> dict[str, Any]:
        return {ITERATION: index + 1, METRIC: metric, TIME: PENALTY_S}

    def _as_optuna_trial(self, params: Mapping[str, Any], outcome: Outcome) -> Any:
        failed = outcome.status in _ERRORS
        return create_trial(
            state=TrialState.FAIL if failed else TrialState.COMPLETE,
            params=self._space.read(params),
            distributions=distributions(self._space, params),
            value=None if failed else penalised_s(outcome),
        )


_ERRORS = (Status.FAILED, Status.OOM)
