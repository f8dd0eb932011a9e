"""The search's policy as a sampler and a pruner of Optuna, for anybody's `study.optimize`."""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Unpack
from zlib import crc32

from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Recommended
from tune_speed.core.words import StopReason
from tune_speed.tuning.optuna.observed_study import (
    TRAIN_S,
    Goal,
    ObservedStudy,
    Options,
    parameter_of,
    space_of,
)
from tune_speed.tuning.policy.base import trial_number

STOP_REASON = "stop_reason"
"""User attribute of a pruned trial: why, in words."""


class Recommendation(NamedTuple):
    """The configuration that meets the target in the least expected time."""

    params: dict[str, Any]
    """What it is."""
    number: int
    """Of the trial that was its fastest run to meet the target."""
    runs: int
    """How often it was run to the end."""
    hits: int
    """How many of these met the target."""
    chance: float | None
    """Probability that another run meets the target; None: there is no model yet."""
    chance_interval: tuple[float, float] | None
    """Of the chance, 95 %."""
    expected_s: float
    """Expected time to target [s] where a miss is run again."""


class TimeToTargetSampler(BaseSampler):
    """Proposes what is likely to meet a target soonest.

    The metric is what trials report (`trial.report(metric, step)`), or the value that they return
    where they report nothing. The training clock is the user attribute `train_s`, which
    `with timed(trial):` keeps; where there is none, a trial's wall time. The study's own direction
    and values are not looked at otherwise: `recommended` says what is best. A trial that breaks a
    constraint (`trial.set_constraint`) counts as one that cannot be run.

    A promising configuration is proposed again, as its runs differ: seed a run by `trial.number`.
    All that the sampler knows is in the study: several processes may share its storage, and a study
    that is loaded again goes on as it would have.
    """

    def __init__(
        self,
        target: float,
        *,
        metric: str = "accuracy",
        direction: str = "maximize",
        space: Mapping[str, BaseDistribution] | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Makes a sampler for one target.

        Args:
            target: worst value of the metric that is good enough.
            metric: its name; `accuracy` and other shares lie in [0, 1].
            direction: of the metric, `maximize` or `minimize`.
            space: all that trials ask for, so that the first is proposed, too; None: what those
                before it asked for.
            options: `mode`, `max_train_s`, `num_trials`, `cost_s`, `repeats` and `seed`, see
                `Options`.

        Raises: ConfigError if target, metric and direction do not go together.
        """
        self._goal, self._space = Goal.of(target, metric, direction, options), space
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        return {"_goal": self._goal, "_space": self._space}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _begin(self) -> None:
        self._observed: dict[str, ObservedStudy] = {}
        self._planned: dict[tuple[str, int], dict[str, Any] | None] = {}
        """What the policy proposed for a trial, of choices that storages may return changed."""
        self._lock = threading.RLock()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Returns all that trials of the study asked for, with the latest ranges.

        Not choices such as tuples: storages return lists, which Optuna takes for others.
        """
        self._raise_error_if_multi_objective(study)
        changed = (list, tuple, dict)
        return {
            name: each
            for name, each in self._known(_before(study, trial.number)).items()
            if not any(isinstance(choice, changed) for choice in getattr(each, "choices", ()))
        }

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Returns the policy's proposal, or random values where it has none left to try."""
        self._raise_error_if_multi_objective(study)
        params = self.plan(study, trial) or {}
        return {name: value for name, value in params.items() if name in search_space}

    def plan(self, study: Study, trial: FrozenTrial | None = None) -> dict[str, Any] | None:
        """Returns what is proposed for a trial, by default the next; None: nothing is for now."""
        number = len(study.get_trials(deepcopy=False)) if trial is None else trial.number
        known, key = self._known(_before(study, number)), (study.study_name, number)
        if not known and self._space is None:
            return None
        with self._lock:
            if self._planned.get(key) is None:
                proposal = self._updated(study, trial, known).policy.ask(number)
                self._planned[key] = None if proposal is None else proposal.params
            return self._planned[key]

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Returns a random value: of the first trial, and of what none asked for before."""
        self._raise_error_if_multi_objective(study)
        with suppress(KeyError, ValueError):
            value = (self._planned.get((study.study_name, trial.number)) or {})[param_name]
            return parameter_of(param_name, param_distribution, {}).read(value)
        # The trial's own seed, so that processes that share a study draw different ones.
        seed = crc32(f"{self._goal.seed} {trial.number} {param_name}".encode())
        return RandomSampler(seed=seed).sample_independent(
            study, trial, param_name, param_distribution
        )

    def after_trial(self, study: Study, trial: FrozenTrial, *_: Any) -> None:
        self._planned.pop((study.study_name, trial.number), None)

    def stop_reason(self, study: Study, trial: FrozenTrial) -> StopReason | None:
        """Returns why a running trial cannot win, or None; what `TimeToTargetPruner` asks."""
        space = self._known([*study.get_trials(deepcopy=False), trial])
        with self._lock:
            return self._updated(study, trial, space).stop_reason(trial)

    def recommended(self, study: Study) -> Recommendation | None:
        """Returns the configuration of the least expected time to target; None: none met it."""
        found = self.favourites(study)
        if not found:
            return None
        best, chance = found[0], found[0].chance
        number = trial_number(best.trial_id)
        return Recommendation(
            params=study.get_trials(deepcopy=False)[number].params,
            number=number,
            runs=best.runs,
            hits=best.hits,
            chance=None if chance is None else chance.value,
            chance_interval=None if chance is None else chance.ends,
            expected_s=best.expected_s,
        )

    def favourites(self, study: Study) -> tuple[Recommended, ...]:
        """Returns configurations that met the target, what is recommended first."""
        trials = study.get_trials(deepcopy=False)
        with self._lock:
            return self._updated(study, None, self._known(trials)).policy.favourites

    def _known(self, trials: Iterable[FrozenTrial]) -> dict[str, BaseDistribution]:
        known = dict(self._space or {})
        for trial in trials:
            known |= trial.distributions
        return {name: each for name, each in known.items() if not each.single()}

    def _updated(
        self, study: Study, trial: FrozenTrial | None, space: Mapping[str, BaseDistribution]
    ) -> ObservedStudy:
        trials = study.get_trials(deepcopy=False)
        if trial is not None and trial.state == TrialState.RUNNING:
            # Storages may be behind what the trial knows.
            trials = [trial if other.number == trial.number else other for other in trials]
        parameters, known = space_of(space, trials), self._observed.get(study.study_name)
        texts = [parameter.as_text for parameter in parameters]
        if known is None or [parameter.as_text for parameter in known.parameters] != texts:
            known = self._observed[study.study_name] = ObservedStudy(self._goal, parameters)
        known.update(trials)
        return known


def _before(study: Study, number: int) -> Iterator[FrozenTrial]:
    return (trial for trial in study.get_trials(deepcopy=False) if trial.number != number)


class TimeToTargetPruner(BasePruner):
    """Prunes a trial that can no longer win; goes with a `TimeToTargetSampler`.

    Why is in the trial's user attribute `stop_reason`.
    """

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Returns whether to prune. Raises: ConfigError if the study has another sampler."""
        sampler = study.sampler
        if not isinstance(sampler, TimeToTargetSampler):
            raise ConfigError(
                "TimeToTargetPruner must go with a TimeToTargetSampler, but the study has a"
                f" {type(sampler).__name__}. Make the study with both, or with another pruner."
            )
        reason = sampler.stop_reason(study, trial)
        if reason is not None:
            study._storage.set_trial_user_attr(trial._trial_id, STOP_REASON, str(reason))
        return reason is not None


@contextmanager
def timed(trial: Trial, *, device: str = "auto") -> Iterator[None]:
    """Adds what its block takes to the training clock: once before each report.

    Work on the device is waited for: `cuda:1`, say; `auto` is the first GPU where there is one.
    Evaluations belong outside.
    """
    readings: list[float] = list(trial.user_attrs.get(TRAIN_S, []))
    wait = _waiting(device)
    wait()
    started_s = time.perf_counter()
    yield
    wait()
    readings.append((readings[-1] if readings else 0.0) + time.perf_counter() - started_s)
    trial.set_user_attr(TRAIN_S, readings)


def _waiting(device: str) -> Callable[[], None]:
    if "torch" not in sys.modules:
        return lambda: None
    from tune_speed.runtime.device import resolve_device, synchronizer

    return synchronizer(resolve_device(device))
