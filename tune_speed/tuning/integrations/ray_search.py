"""The search's policy as a searcher and a scheduler of Ray Tune, for anybody's trainable."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from ray import cloudpickle
from ray.tune.experiment import Trial as RayTrial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.search.optuna import OptunaSearch
from ray.tune.utils.util import unflatten_dict

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Recommended
from tune_speed.core.words import StopReason
from tune_speed.runtime.atomic_file import write_atomically
from tune_speed.tuning.integrations.learning_policy import Goal, LearningPolicy, Options
from tune_speed.tuning.integrations.observed_study import space_of
from tune_speed.tuning.policy.base import Outcome, Proposal
from tune_speed.tuning.policy.curve import Curve

TRAIN_S = "train_s"
"""Key of a result: seconds of training so far, evaluations left out."""


@dataclass
class _Run:
    proposal: Proposal
    train_s: list[float] = field(default_factory=list)
    metric: list[float] = field(default_factory=list)
    iteration: int = 0
    """Of the last report."""
    stop_reason: StopReason | None = None
    outcome: Outcome | None = None


class TimeToTargetSearch(Searcher):  # type: ignore[misc]
    """Proposes what is likely to meet a target soonest: `tune.TuneConfig(search_alg=…)`.

    The trainable reports the metric and `train_s`, the training clock [s]; without the latter its
    wall time counts (`time_total_s`). Metric and direction are those of `tune.TuneConfig`. A
    configuration is run again where its runs may differ, so seed a run by `config[seed_as]`.
    """

    def __init__(
        self, target: float, *, seed_as: str | None = None, **options: Unpack[Options]
    ) -> None:
        """Makes a searcher for one target.

        Args:
            target: worst value of the metric that is good enough.
            seed_as: key of a configuration that gets the trial's number; None: none does.
            options: `mode`, `max_train_s`, `num_trials` (`num_samples`), `cost_s`, `repeats` and
                `seed`, see `Options`.
        """
        super().__init__()
        self._options, self._value, self._seed_as = options, target, seed_as
        self._policy: LearningPolicy | None = None
        self._runs: dict[str, _Run] = {}
        self._live: set[str] = set()
        """Trials that run. A driver that was killed leaves some that Tune may have forgotten."""

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Takes metric, direction and space of the tuner.

        Raises: ConfigError without metric and mode, or if they do not go with the target;
            ValueError where the space has a grid.
        """
        if metric is None or mode is None:
            raise ConfigError(
                "TimeToTargetSearch needs the metric and its mode. Say them in the TuneConfig:"
                ' tune.TuneConfig(metric="accuracy", mode="max", search_alg=…).'
            )
        self._metric, self._mode = metric, mode
        if self._policy is None:  # Otherwise it was restored, with all that it knows.
            goal = Goal.of(self._value, metric, mode, self._options)
            parameters = space_of(OptunaSearch.convert_search_space(config), ())
            self._policy = LearningPolicy(goal, parameters)
        return True

    def suggest(self, trial_id: str) -> Any:
        """Returns the next configuration; None for now, or `FINISHED` where none is left to try."""
        proposal = self._learned().policy.ask()
        if proposal is None:
            return None if self._live else Searcher.FINISHED
        self._runs[trial_id] = _Run(proposal)
        self._live.add(trial_id)
        seed = {} if self._seed_as is None else {self._seed_as: int(proposal.trial_id[1:])}
        return unflatten_dict({**proposal.params, **seed})

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Takes a report, unless the scheduler was given it before."""
        run = self._runs.get(trial_id)
        if run is None or run.outcome is not None or self._metric not in result:
            return
        self._live.add(trial_id)
        iteration = int(result["training_iteration"])
        if iteration == run.iteration:
            return
        if iteration < run.iteration:  # Ray began it again, after a fault.
            run.train_s, run.metric = [], []
        run.iteration = iteration
        run.train_s.append(float(result.get(TRAIN_S, result["time_total_s"])))
        run.metric.append(self._learned().goal.target.score(float(result[self._metric])))
        run.stop_reason = self._learned().policy.report(
            run.proposal.trial_id, train_s=run.train_s[-1], step=iteration, metric=run.metric[-1]
        )

    def stop_reason(self, trial_id: str) -> StopReason | None:
        """Returns why a trial cannot win, as of its last report, or None."""
        run = self._runs.get(trial_id)
        return None if run is None else run.stop_reason

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Learns from a trial that ended; one that failed teaches nothing."""
        run = self._runs.get(trial_id)
        if run is None or run.outcome is not None:
            return
        if result is not None and not error:
            self.on_trial_result(trial_id, result)
        learned = self._learned()
        self._live.discard(trial_id)
        if error:
            learned.policy.withdraw(run.proposal.trial_id)
            del self._runs[trial_id]
            return
        curve = Curve(np.array(run.train_s), np.array(run.metric))
        # A pruned trial's last report is the one that stopped it.
        run.outcome = learned.outcome(curve, is_stopped=run.stop_reason is not None)
        learned.ended(run.proposal, run.outcome)

    def recommended(self) -> Recommended | None:
        """Returns the configuration of the least expected time to target; None: none met it.

        `config_of` says what it is.
        """
        favourites = self._learned().policy.favourites
        return favourites[0] if favourites else None

    def config_of(self, trial_id: str) -> dict[str, Any]:
        """Returns the configuration of a recommended trial. Raises: KeyError."""
        by_id = {run.proposal.trial_id: run.proposal for run in self._runs.values()}
        config: dict[str, Any] = unflatten_dict(by_id[trial_id].params)
        return config

    def save(self, checkpoint_path: str) -> None:
        """Writes target, space and all runs to a file."""
        learned = self._learned()
        state = (learned.goal, learned.parameters, self._metric, self._runs)
        with write_atomically(Path(checkpoint_path)) as file:
            cloudpickle.dump(state, file)  # `cost_s` may be a function of a script.

    def restore(self, checkpoint_path: str) -> None:
        """Takes over what `save` wrote: runs that did not end go on."""
        state = cloudpickle.loads(Path(checkpoint_path).read_bytes())
        goal, parameters, self._metric, self._runs = state
        learned = self._policy = LearningPolicy(goal, parameters)
        for run in self._runs.values():
            if run.outcome is not None:
                learned.ended(run.proposal, run.outcome)
        going = [run.proposal for run in self._runs.values() if run.outcome is None]
        learned.policy.observe(going, running={each.trial_id for each in going})

    def _learned(self) -> LearningPolicy:
        if self._policy is None:
            raise ConfigError(
                "TimeToTargetSearch needs a search space before it can propose. Give it to the"
                " tuner: tune.Tuner(trainable, param_space={…}, tune_config=…)."
            )
        return self._policy


class TimeToTargetScheduler(FIFOScheduler):  # type: ignore[misc]
    """Stops trials that can no longer win: `tune.TuneConfig(scheduler=…)`."""

    def __init__(self, search: TimeToTargetSearch) -> None:
        super().__init__()
        self._search = search

    def on_trial_result(
        self, tune_controller: Any, trial: RayTrial, result: Mapping[str, Any]
    ) -> str:
        # Tune asks the scheduler first.
        self._search.on_trial_result(trial.trial_id, result)
        stops = self._search.stop_reason(trial.trial_id) is not None
        return str(TrialScheduler.STOP if stops else TrialScheduler.CONTINUE)
