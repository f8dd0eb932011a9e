"""The search's policy over the trials of a study of Optuna that another program runs.

The space is the union of what the trials asked for, each parameter with its latest range. One that
only some asked for depends on a choice if these are the trials with one value of it.

How long a run takes is learned from the runs, by Bayesian linear regression of the logarithm of
its time on the configuration,

    ln T = μ + Σ_i β_i x_i + ε,    β_i ~ N(0, 1²),   μ ~ N(mean ln T, 3²),   ε ~ N(0, 0.15²),

with x_i = ln of a value above 0 (so that time may grow as a power of it), a value's place in its
range where that reaches 0 or below, and an indicator for each choice. What is not part of a
configuration counts as 0. Source: Gelman et al., Bayesian Data Analysis, section 14.8.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status
from tune_speed.core.targets import Target
from tune_speed.core.words import ProposalKind, ProposalReason, StopReason
from tune_speed.study.parameter import Parameter, same
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.base import Cost, Outcome, Parts, Problem, Proposal, SearchTarget
from tune_speed.tuning.policy.curve import Curve, FloatArray, Mode, crossing
from tune_speed.tuning.policy.time_to_target import TimeToTarget

TRAIN_S = "train_s"
"""User attribute with the training clock [s]: of the whole trial, or a list with one reading for
each report."""
PredictedCost = Callable[[Mapping[str, Any]], float | None]
"""From a configuration to the seconds that a run of it takes; None: not known."""
DIRECTIONS = {"maximize": "max", "minimize": "min", "max": "max", "min": "min"}

LEVEL_SD, FACTOR_SD, REST_SD = 3.0, 1.0, 0.15
LEAST_RUNS = 3
"""Runs that are needed before any cost is predicted."""


class Options(TypedDict, total=False):
    """What a sampler or searcher can be given besides its target."""

    mode: Mode
    """`fixed_length`, the default, if the metric must hold at a run's end, whose length is part of
    the configuration; `anytime` if a run ends as soon as it holds."""
    max_train_s: float
    """Longest run on the training clock [s]."""
    num_trials: int | None
    """Trials in all, of which the last 15 % run the favourites again; None: any."""
    cost_s: PredictedCost | None
    """Seconds that a run of a configuration takes, where that is known beforehand; otherwise it is
    learned from the runs."""
    repeats: bool
    """Whether configurations are run again, as they are by default."""
    seed: int | None
    """Of the proposals; None: another one each time."""


class Goal(NamedTuple):
    """What is searched for, and how."""

    target: Target
    seed: int
    options: Options

    @classmethod
    def of(cls, value: float, metric: str, direction: str, options: Options) -> "Goal":
        """Returns the goal of a sampler's or searcher's arguments.

        Raises: ConfigError if target, metric and direction do not go together; TypeError if there
            is no such option.
        """
        if unknown := options.keys() - Options.__annotations__.keys():
            known = ", ".join(Options.__annotations__)
            raise TypeError(f"options must be {known}, but got {', '.join(sorted(unknown))}.")
        if direction not in DIRECTIONS:
            raise ConfigError(f"direction must be maximize or minimize, but got {direction!r}.")
        if (mode := options.get("mode", "fixed_length")) not in ("fixed_length", "anytime"):
            raise ConfigError(f"mode must be fixed_length or anytime, but got {mode!r}.")
        fields = {"metric": metric, "value": value, "mode": DIRECTIONS[direction]}
        try:
            target = Target.model_validate(fields)
        except ValueError as error:
            raise ConfigError(f"The target cannot be met as it is: {error}") from None
        seed = options.get("seed")
        return cls(target, random.SystemRandom().getrandbits(31) if seed is None else seed, options)

    def problem(self, parameters: tuple[Parameter, ...], learned: "LearnedCost") -> Problem:
        given_s = self.options.get("cost_s")

        def cost_of(params: Mapping[str, Any]) -> Cost | None:
            known_s = given_s(params) if given_s else None
            return learned(params) if known_s is None else Cost(known_s)

        mode, longest_s = self.mode, self.options.get("max_train_s", math.inf)
        target = SearchTarget(self.target.goal, mode, longest_s)
        return Problem(SearchSpace(tree={}, parameters=parameters), target, cost_of, self.seed)

    @property
    def mode(self) -> Mode:
        return self.options.get("mode", "fixed_length")


class LearnedCost:
    """From a configuration to its cost, after runs that went to their ends."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._parameters = parameters
        self._rows: list[FloatArray] = []
        self._logs: list[float] = []
        self._fit: tuple[FloatArray, FloatArray, float] | None = None

    def learn(self, params: Mapping[str, Any], train_s: float) -> None:
        """Takes a run's seconds on the training clock; 0 says nothing."""
        if train_s > 0:
            self._rows.append(self._row(params))
            self._logs.append(math.log(train_s))
            self._fit = None

    def __call__(self, params: Mapping[str, Any]) -> Cost | None:
        """Returns the likely cost, and as a bound what two standard deviations less would be."""
        if len(self._rows) < LEAST_RUNS:
            return None
        self._fit = self._fit or self._fitted()
        row, (weights, covariance, level) = self._row(params), self._fit
        sd = math.sqrt(float(row @ covariance @ row) + REST_SD**2)
        likely = level + float(row @ weights)
        return Cost(math.exp(likely - 2 * sd), guess_s=math.exp(likely))

    def _fitted(self) -> tuple[FloatArray, FloatArray, float]:
        rows, logs = np.array(self._rows), np.array(self._logs)
        level = float(logs.mean())
        precision = np.full(rows.shape[1], FACTOR_SD**-2)
        precision[0] = LEVEL_SD**-2
        known = np.diag(precision) + rows.T @ rows / REST_SD**2
        covariance = np.asarray(np.linalg.inv(known), dtype=float)
        weights: FloatArray = covariance @ rows.T @ (logs - level) / REST_SD**2
        return weights, covariance, level

    def _row(self, params: Mapping[str, Any]) -> FloatArray:
        row = [1.0]
        for parameter in self._parameters:
            value = params.get(parameter.name)
            if parameter.kind == "categorical":
                chosen = parameter.position(value) if parameter.name in params else None
                row += [float(position == chosen) for position in range(len(parameter.choices))]
            else:
                row.append(0.0 if value is None else _place(parameter, float(value)))
        return np.array(row)


class ObservedStudy:
    """A policy that has seen the trials of a study, for as long as its space stays the same."""

    def __init__(self, goal: Goal, parameters: tuple[Parameter, ...]) -> None:
        self.parameters, self._goal = parameters, goal
        self._cost, self._seen = LearnedCost(parameters), set[int]()
        parts = Parts(repeats=goal.options.get("repeats", True))
        self.policy = TimeToTarget(goal.problem(parameters, self._cost), parts=parts)

    def update(self, trials: Sequence[FrozenTrial]) -> None:
        for trial in trials:
            if trial.state.is_finished() and trial.number not in self._seen:
                self._seen.add(trial.number)
                self._learn(trial)
        if num_trials := self._goal.options.get("num_trials"):
            self.policy.spent = len(self._seen) / num_trials
        running = [trial for trial in trials if trial.state == TrialState.RUNNING]
        proposals = filter(None, map(self._proposal, running))
        self.policy.observe(proposals, running={_id(trial) for trial in running})

    def _learn(self, trial: FrozenTrial) -> None:
        proposal = self._proposal(trial)
        if proposal is None:
            return
        outcome = self._outcome(trial)
        if outcome.status in (Status.REACHED, Status.MISSED):
            self._cost.learn(proposal.params, outcome.curve.end_s)
        self.policy.restore(finished=[(proposal, outcome)], unfinished=())

    def stop_reason(self, trial: FrozenTrial) -> StopReason | None:
        if self._proposal(trial) is None or not trial.intermediate_values:
            return None
        curve, reason = self._curve(trial), None
        for k in range(self.policy.num_reports(_id(trial)), len(curve.metric)):
            train_s, metric = float(curve.train_s[k]), float(curve.metric[k])
            reason = self.policy.report(_id(trial), train_s=train_s, step=k + 1, metric=metric)
        return reason

    def _proposal(self, trial: FrozenTrial) -> Proposal | None:
        """Returns a trial's values of the space; None if it has none, or one outside of it."""
        params: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.name in trial.params and parameter.is_active(params):
                try:
                    params[parameter.name] = parameter.read(trial.params[parameter.name])
                except ValueError:
                    return None
        if self.parameters and not params:
            return None
        return Proposal(_id(trial), params, ProposalReason.of(ProposalKind.OBSERVED))

    def _outcome(self, trial: FrozenTrial) -> Outcome:
        if trial.state == TrialState.FAIL:
            return Outcome(Status.FAILED, 0.0)
        if any(violation > 0 for violation in trial.constraints.values()):
            return Outcome(Status.OOM, 0.0)
        curve = self._curve(trial)
        if np.isnan(curve.metric[-1:]).any():
            return Outcome(Status.DIVERGED, curve.end_s, curve)
        if trial.state == TrialState.PRUNED:
            return Outcome(Status.CAPPED, curve.end_s, curve)
        # The last value confirms itself.
        whole = Curve(*(np.append(each, each[-1]) for each in curve))
        at = crossing(whole, target=self._goal.target.goal, mode=self._goal.mode)
        if at is None:
            return Outcome(Status.MISSED, curve.end_s, curve)
        return Outcome(Status.REACHED, float(whole.train_s[at]), curve)

    def _curve(self, trial: FrozenTrial) -> Curve:
        values = [value for _, value in sorted(trial.intermediate_values.items())]
        if not values and trial.state.is_finished() and trial.values:
            values = trial.values[:1]
        scores = np.array([self._goal.target.score(value) for value in values])
        return Curve(_clock_s(trial, len(values)), scores)


def _place(parameter: Parameter, value: float) -> float:
    assert parameter.low is not None and parameter.high is not None
    if parameter.low > 0:
        return math.log(value / math.sqrt(parameter.low * parameter.high))
    return (value - parameter.low) / (parameter.high - parameter.low or 1.0)


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
