"""Ray Tune as its documentation shows it: `OptunaSearch` and `AsyncHyperBandScheduler`, unchanged.

The searcher minimises the time to target, or a large penalty where it is missed. The scheduler
(ASHA) compares the metric after equal numbers of evaluations, with Ray's defaults.
"""

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

from optuna.samplers import TPESampler
from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler
from ray.tune.search.optuna import OptunaSearch

from tune_speed.core.records import Status
from tune_speed.core.words import ProposalKind, StopKind, StopReason
from tune_speed.tuning.baselines.plain import PENALTY_S, Baseline, minimised
from tune_speed.tuning.policy.base import Outcome, Problem, Proposal
from tune_speed.tuning.policy.samplers import hush_optuna, suggest

TIME = "time_to_target_s"
METRIC = "metric"
ITERATION = "training_iteration"
# So high that ASHA never ends a trial for its length alone.
MAX_EVALUATIONS = 100_000


class Vanilla(Baseline):
    """Ray's searcher and scheduler behind the seam of a policy."""

    _kind = ProposalKind.OPTUNA_SEARCH
    _failures = (Status.FAILED, Status.OOM)

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, lambda seed: TPESampler(seed=seed))
        hush_optuna()
        self._searcher = OptunaSearch(
            space=partial(suggest, problem.space), metric=TIME, mode="min", seed=problem.seed
        )
        self._study = self._searcher._ot_study
        self._scheduler = AsyncHyperBandScheduler(
            time_attr=ITERATION, metric=METRIC, mode="max", max_t=MAX_EVALUATIONS
        )
        self._running: dict[str, SimpleNamespace] = {}

    def _restore(self, proposal: Proposal, outcome: Outcome) -> None:
        # Ray's own restore brings neither the scheduler's rungs nor the last results back.
        super()._restore(proposal, outcome)
        self._begin(proposal.trial_id)
        # Whatever the rungs say now, in the order of ends: these values were reported then.
        for index, value in enumerate(outcome.curve.metric):
            self._is_stopped(proposal.trial_id, index, float(value))
        self._end_in_scheduler(proposal.trial_id, outcome)

    def _propose(self, trial_id: str) -> dict[str, Any]:
        self._searcher.suggest(trial_id)
        self._begin(trial_id)
        # What it returns is unflattened at every `/` of a name.
        return self._space.read(self._searcher._ot_trials[trial_id].params)

    def report(
        self, trial_id: str, *, train_s: float, step: int, metric: float
    ) -> StopReason | None:
        """Passes a result to scheduler and searcher as Tune's controller does."""
        trial, index = self._running[trial_id], self._running[trial_id].num_results
        trial.num_results += 1
        if self._is_stopped(trial_id, index, metric):
            trial.is_stopped = True
            return StopReason.of(StopKind.BELOW_CUTOFF, at_s=train_s, evaluations=index + 1)
        self._searcher.on_trial_result(trial_id, self._result(index, metric))
        return None

    def finish(self, trial_id: str, outcome: Outcome) -> None:
        """Passes a trial's end on. One that failed or had no memory has no result, as in Tune."""
        self._lead(trial_id, outcome)
        self._end_in_scheduler(trial_id, outcome)
        if outcome.status in self._failures:
            self._searcher.on_trial_complete(trial_id, error=True)
            return
        self._searcher.on_trial_complete(trial_id, {TIME: minimised(outcome, self._target)})

    def withdraw(self, trial_id: str) -> None:
        self._searcher.on_trial_complete(trial_id, error=True)
        # Otherwise OptunaSearch takes a trial that runs again under this id for a finished one.
        del self._searcher._ot_trials[trial_id]
        self._searcher._completed_trials.discard(trial_id)
        self._scheduler.on_trial_remove(None, self._running.pop(trial_id))

    def _begin(self, trial_id: str) -> None:
        trial = SimpleNamespace(trial_id=trial_id, num_results=0, is_stopped=False)
        self._running[trial_id] = trial
        self._scheduler.on_trial_add(None, trial)

    def _is_stopped(self, trial_id: str, index: int, metric: float) -> bool:
        if math.isnan(metric):
            return False  # As ASHA itself answers, which also warns if a rung holds nothing else.
        trial, result = self._running[trial_id], self._result(index, metric)
        action = self._scheduler.on_trial_result(None, trial, result)
        return bool(action == TrialScheduler.STOP)

    def _end_in_scheduler(self, trial_id: str, outcome: Outcome) -> None:
        trial, values = self._running.pop(trial_id), outcome.curve.metric
        is_void = outcome.status in self._failures or not len(values) or math.isnan(values[-1])
        if is_void or trial.is_stopped:
            self._scheduler.on_trial_remove(None, trial)
            return
        result = self._result(len(values) - 1, float(values[-1]))
        self._scheduler.on_trial_complete(None, trial, result)

    @staticmethod
    def _result(index: int, metric: float) -> dict[str, Any]:
        return {ITERATION: index + 1, METRIC: metric, TIME: PENALTY_S}
