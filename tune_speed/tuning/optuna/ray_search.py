"""The sampler for Optuna as a searcher and a scheduler of Ray Tune, for anybody's trainable."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
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
from tune_speed.tuning.optuna.observed_study import TRAIN_S, Options, parameter_of
from tune_speed.tuning.optuna.sampler import TimeToTargetSampler
from tune_speed.tuning.policy.base import trial_number


class _Choices(CategoricalDistribution):
    """Choices of which Optuna's own takes some, such as 1 and true, for one."""

    def to_internal_repr(self, param_value_in_external_repr: Any) -> float:
        return float(parameter_of("", self, {}).position(param_value_in_external_repr))


class TimeToTargetSearch(OptunaSearch):  # type: ignore[misc]
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
        self._options, self._target, self._seed_as = options, target, seed_as
        self._reasons: dict[str, StopReason | None] = {}
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
        if self._ot_study is None:  # Otherwise it was restored, with all that it knows.
            self._metric, self._mode = metric, mode
            self._space = {
                name: _Choices(each.choices) if hasattr(each, "choices") else each
                for name, each in self.convert_search_space(config).items()
            }
            self._sampler = TimeToTargetSampler(
                self._target, metric=metric, direction=mode, space=self._space, **self._options
            )
            self._setup_study(mode)
        return True

    def suggest(self, trial_id: str) -> Any:
        """Returns the next configuration; None for now, or `FINISHED` where none is left to try."""
        study = self._known_study()
        if self._sampler.plan(study) is None:
            return None if self._live else Searcher.FINISHED
        trial = self._ot_trials[trial_id] = study.ask(self._space)
        self._live.add(trial_id)
        seed = {} if self._seed_as is None else {self._seed_as: trial.number}
        return unflatten_dict({**trial.params, **seed})

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Takes a report, unless the scheduler was given it before."""
        if not self._runs(trial_id) or self._metric not in result:
            return
        self._live.add(trial_id)
        iteration, last = int(result["training_iteration"]), self._frozen(trial_id).last_step
        if iteration == last:
            return
        if last is not None and iteration < last:
            self._begin_again(trial_id)
        trial, clock_s = self._ot_trials[trial_id], result.get(TRAIN_S, result["time_total_s"])
        trial.set_user_attr(TRAIN_S, [*trial.user_attrs.get(TRAIN_S, ()), float(clock_s)])
        trial.report(float(result[self._metric]), iteration)
        frozen = self._frozen(trial_id)
        self._reasons[trial_id] = self._sampler.stop_reason(self._ot_study, frozen)

    def _begin_again(self, trial_id: str) -> None:
        """Begins a trial that Ray began again, after a fault, as another one of Optuna's."""
        study, before = self._ot_study, self._frozen(trial_id)
        study.tell(before.number, state=TrialState.FAIL)
        copy = create_trial(
            state=TrialState.RUNNING, params=before.params, distributions=before.distributions
        )
        new = study._storage.create_new_trial(study._study_id, copy)
        self._ot_trials[trial_id] = optuna.Trial(study, new)

    def _runs(self, trial_id: str) -> bool:
        return trial_id in self._ot_trials and trial_id not in self._completed_trials

    def _frozen(self, trial_id: str) -> FrozenTrial:
        number = self._ot_trials[trial_id].number
        found: FrozenTrial = self._ot_study.get_trials(deepcopy=False)[number]
        return found

    def stop_reason(self, trial_id: str) -> StopReason | None:
        """Returns why a trial cannot win, as of its last report, or None."""
        return self._reasons.get(trial_id)

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Learns from a trial that ended; one that failed teaches nothing."""
        if not self._runs(trial_id):
            return
        if result is not None and not error:
            self.on_trial_result(trial_id, result)
        trial = self._frozen(trial_id)
        ended = TrialState.FAIL if error or trial.last_step is None else TrialState.PRUNED
        # Optuna has no value of a run whose last metric is no number.
        value = None if trial.last_step is None else trial.intermediate_values[trial.last_step]
        if ended == TrialState.PRUNED and value == value and self.stop_reason(trial_id) is None:
            self._ot_study.tell(trial.number, value)
        else:
            self._ot_study.tell(trial.number, state=ended)
        self._completed_trials.add(trial_id)
        self._live.discard(trial_id)

    def recommended(self) -> Recommended | None:
        """Returns the configuration of the least expected time to target; None: none met it.

        `config_of` says what it is.
        """
        favourites: tuple[Recommended, ...] = self._sampler.favourites(self._known_study())
        return favourites[0] if favourites else None

    def config_of(self, trial_id: str) -> dict[str, Any]:
        """Returns the configuration of a recommended trial."""
        trial = self._known_study().trials[trial_number(trial_id)]
        config: dict[str, Any] = unflatten_dict(trial.params)
        return config

    def save(self, checkpoint_path: str) -> None:
        """Writes target, space and all runs to a file; runs that did not end go on from there."""
        state = {name: value for name, value in vars(self).items() if name != "_live"}
        with write_atomically(Path(checkpoint_path)) as file:
            cloudpickle.dump(state, file)  # `cost_s` may be a function of a script.

    def _known_study(self) -> optuna.Study:
        study: optuna.Study | None = self._ot_study
        if study is None:
            raise ConfigError(
                "TimeToTargetSearch needs a search space before it can propose. Give it to the"
                " tuner: tune.Tuner(trainable, param_space={…}, tune_config=…)."
            )
        return study


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
