"""The search's policy where nobody says beforehand what a run costs, nor writes a study file.

How long a run takes, learned from runs alone: where nobody can say the steps beforehand.

Bayesian linear regression of the logarithm of a run's time on the configuration,

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

from tune_speed.core.errors import ConfigError
from tune_speed.core.records import Status
from tune_speed.core.targets import Target
from tune_speed.study.parameter import Parameter
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.base import Cost, Outcome, Parts, Problem, Proposal, SearchTarget
from tune_speed.tuning.policy.curve import Curve, FloatArray, Mode, crossing
from tune_speed.tuning.policy.time_to_target import TimeToTarget

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
    mode: Mode
    max_train_s: float
    num_trials: int | None
    """Trials in all, of which the last tell the favourites apart; None: it is not known."""
    cost_s: PredictedCost | None
    seed: int
    parts: Parts

    @classmethod
    def of(cls, value: float, metric: str, direction: str, options: Options) -> "Goal":
        """Returns the goal of a sampler's or searcher's arguments.

        Raises: ConfigError if target, metric and direction do not go together; TypeError if there
            is no such option.
        """
        if unknown := options.keys() - Options.__annotations__.keys():
            known = ", ".join(Options.__annotations__)
            raise TypeError(f"options must be {known}, but got {', '.join(sorted(unknown))}.")
        mode, seed = options.get("mode", "fixed_length"), options.get("seed")
        if direction not in DIRECTIONS:
            raise ConfigError(f"direction must be maximize or minimize, but got {direction!r}.")
        if mode not in ("fixed_length", "anytime"):
            raise ConfigError(f"mode must be fixed_length or anytime, but got {mode!r}.")
        fields = {"metric": metric, "value": value, "mode": DIRECTIONS[direction]}
        try:
            target = Target.model_validate(fields)
        except ValueError as error:
            raise ConfigError(f"The target cannot be met as it is: {error}") from None
        return cls(
            target=target,
            mode=mode,
            max_train_s=options.get("max_train_s", math.inf),
            num_trials=options.get("num_trials"),
            cost_s=options.get("cost_s"),
            seed=random.SystemRandom().getrandbits(31) if seed is None else seed,
            parts=Parts(repeats=options.get("repeats", True)),
        )


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


class LearningPolicy:
    """The policy over one space, and what runs taught of their costs."""

    def __init__(self, goal: Goal, parameters: tuple[Parameter, ...]) -> None:
        self.goal, self.parameters = goal, parameters
        self._cost, self._num_ended = LearnedCost(parameters), 0
        target = SearchTarget(goal.target.goal, goal.mode, goal.max_train_s)
        space = SearchSpace(tree={}, parameters=parameters)
        problem = Problem(space, target, self._cost_of, goal.seed)
        self.policy = TimeToTarget(problem, parts=goal.parts)

    def ended(self, proposal: Proposal, outcome: Outcome) -> None:
        if outcome.status in (Status.REACHED, Status.MISSED):
            self._cost.learn(proposal.params, outcome.curve.end_s)
        self.policy.restore(finished=[(proposal, outcome)], unfinished=())
        self._num_ended += 1
        num_trials = self.goal.num_trials
        self.policy.spent = self._num_ended / num_trials if num_trials else 0.0

    def outcome(self, curve: Curve, *, is_stopped: bool) -> Outcome:
        if is_stopped:
            return Outcome(Status.CAPPED, curve.end_s, curve)
        if not len(curve.metric) or math.isnan(curve.metric[-1]):
            return Outcome(Status.DIVERGED, curve.end_s, curve)
        # The last value confirms itself.
        whole = Curve(*(np.append(each, each[-1]) for each in curve))
        at = crossing(whole, target=self.goal.target.goal, mode=self.goal.mode)
        if at is None:
            return Outcome(Status.MISSED, curve.end_s, curve)
        return Outcome(Status.REACHED, float(whole.train_s[at]), curve)

    def _cost_of(self, params: Mapping[str, Any]) -> Cost | None:
        given_s = self.goal.cost_s(params) if self.goal.cost_s else None
        return self._cost(params) if given_s is None else Cost(given_s)


def _place(parameter: Parameter, value: float) -> float:
    assert parameter.low is not None and parameter.high is not None
    if parameter.low > 0:
        return math.log(value / math.sqrt(parameter.low * parameter.high))
    return (value - parameter.low) / (parameter.high - parameter.low or 1.0)
