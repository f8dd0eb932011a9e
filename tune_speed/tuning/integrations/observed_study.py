"""The search's policy over the trials of somebody else's Optuna study.

The space is the union of what they asked for, each parameter with its latest range. One that only
some trials asked for depends on a choice if these are the trials with one value of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState

from tune_speed.core.records import Status
from tune_speed.core.words import ProposalKind, ProposalReason, StopReason
from tune_speed.study.parameter import Parameter, same
from tune_speed.tuning.integrations.learning_policy import Goal, LearningPolicy
from tune_speed.tuning.policy.base import Outcome, Proposal
from tune_speed.tuning.policy.curve import Curve, FloatArray

TRAIN_S = "train_s"
"""User attribute with the training clock [s]: of the whole trial, or a list with one reading for
each report."""


class ObservedStudy(LearningPolicy):
    """A policy that has seen the trials of a study, for as long as its space stays the same."""

    def __init__(self, goal: Goal, parameters: tuple[Parameter, ...]) -> None:
        super().__init__(goal, parameters)
        self._seen = set[int]()

    def update(self, trials: Iterable[FrozenTrial]) -> None:
        finished, running = [], []
        for trial in trials:
            if trial.state == TrialState.RUNNING:
                running.append(trial)
            elif trial.state.is_finished() and trial.number not in self._seen:
                self._seen.add(trial.number)
                finished.append(trial)
        for trial in finished:
            if self._params(trial) is not None:
                self.ended(self._proposal(trial), self._outcome(trial))
        with_params = [self._proposal(t) for t in running if self._params(t) is not None]
        self.policy.observe(with_params, running={_id(trial) for trial in running})

    def ask(self, number: int) -> dict[str, Any]:
        proposal = self.policy.ask(number)
        return {} if proposal is None else proposal.params

    def stop_reason(self, trial: FrozenTrial) -> StopReason | None:
        if self._params(trial) is None or not trial.intermediate_values:
            return None
        curve, steps = self._curve(trial), sorted(trial.intermediate_values)
        reason = None
        for k in range(self.policy.num_reports(_id(trial)), len(steps)):
            reason = self.policy.report(
                _id(trial),
                train_s=float(curve.train_s[k]),
                step=k + 1,
                metric=float(curve.metric[k]),
            )
        return reason

    def _proposal(self, trial: FrozenTrial) -> Proposal:
        reason = ProposalReason.of(ProposalKind.OBSERVED)
        return Proposal(_id(trial), self._params(trial) or {}, reason)

    def _params(self, trial: FrozenTrial) -> dict[str, Any] | None:
        """Returns a trial's values of the space; None if it has none, or one outside of it."""
        params: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.name in trial.params and parameter.is_active(params):
                try:
                    params[parameter.name] = parameter.read(trial.params[parameter.name])
                except ValueError:
                    return None
        return params if params or not self.parameters else None

    def _outcome(self, trial: FrozenTrial) -> Outcome:
        if trial.state == TrialState.FAIL:
            return Outcome(Status.FAILED, 0.0)
        if any(violation > 0 for violation in trial.constraints.values()):
            return Outcome(Status.OOM, 0.0)
        is_stopped = trial.state == TrialState.PRUNED
        return self.outcome(self._curve(trial), is_stopped=is_stopped)

    def _curve(self, trial: FrozenTrial) -> Curve:
        values = [value for _, value in sorted(trial.intermediate_values.items())]
        if not values and trial.state.is_finished() and trial.values:
            values = trial.values[:1]
        train_s = _clock_s(trial, len(values))
        return Curve(train_s, np.array([self.goal.target.score(value) for value in values]))


def _clock_s(trial: FrozenTrial, num_reports: int) -> FloatArray:
    """Returns the training clock at each report [s]; at equal distances where no list says it."""
    # While it runs, Optuna does not say what it took on the wall clock.
    wall_s = 0.0 if trial.duration is None else trial.duration.total_seconds()
    clock = trial.user_attrs.get(TRAIN_S, wall_s)
    if isinstance(clock, list) and len(clock) == num_reports:
        return np.array(clock, dtype=float)
    whole_s = (clock or [0.0])[-1] if isinstance(clock, list) else clock
    shares: FloatArray = np.arange(1, num_reports + 1) / max(num_reports, 1)
    return float(whole_s) * shares


def space_of(
    distributions: Mapping[str, BaseDistribution], trials: Sequence[FrozenTrial]
) -> tuple[Parameter, ...]:
    """Returns parameters for these distributions, with the conditions that the trials show."""
    ended = [trial for trial in trials if trial.state.is_finished() and trial.params]
    counts = {name: sum(name in trial.params for trial in ended) for name in distributions}
    # What others depend on was asked for at least as often, and before them.
    names = sorted(distributions, key=lambda name: -counts[name])
    chosen: dict[str, Mapping[str, Any]] = {}
    for position, name in enumerate(names):
        earlier = [
            n for n in names[:position] if isinstance(distributions[n], CategoricalDistribution)
        ]
        chosen[name] = _condition(name, earlier, ended) if counts[name] < len(ended) else {}
        for other in list(chosen[name]):
            chosen[name] = {**chosen[other], **chosen[name]}
    return tuple(parameter_of(name, distributions[name], chosen[name]) for name in names)


def _condition(
    name: str, choices: Sequence[str], trials: Sequence[FrozenTrial]
) -> Mapping[str, Any]:
    having = [trial for trial in trials if name in trial.params]
    for other in choices if having else ():
        if other not in having[0].params:
            continue
        value = having[0].params[other]
        chosen = (other in t.params and same(t.params[other], value) for t in trials)
        if all((name in t.params) == has for t, has in zip(trials, chosen, strict=True)):
            return {other: value}
    return {}


def parameter_of(
    name: str, distribution: BaseDistribution, condition: Mapping[str, Any]
) -> Parameter:
    if isinstance(distribution, CategoricalDistribution):
        choices = tuple(distribution.choices)
        return Parameter(name=name, kind="categorical", choices=choices, condition=condition)
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    is_int = isinstance(distribution, IntDistribution)
    step = distribution.step
    return Parameter(
        name=name,
        kind="int" if is_int else "float",
        low=distribution.low,
        high=distribution.high,
        log=distribution.log,
        step=None if step is None or (is_int and step == 1) else step,
        condition=condition,
    )


def _id(trial: FrozenTrial) -> str:
    return f"t{trial.number:04d}"
