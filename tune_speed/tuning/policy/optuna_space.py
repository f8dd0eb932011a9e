"""The search space in Optuna's terms: the one translation of `Parameter` to distributions."""

from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.trial import BaseTrial, FixedTrial

from tune_speed.study.parameter import Parameter
from tune_speed.study.space import Params, SearchSpace


def suggest(space: SearchSpace, trial: BaseTrial) -> Params:
    """Returns what an Optuna trial (also a fixed or frozen one) proposes."""
    params: Params = {}
    for parameter in space.parameters:
        if parameter.is_active(params):
            params[parameter.name] = _suggest(parameter, trial)
    return params


def distributions(space: SearchSpace, params: Mapping[str, Any]) -> dict[str, BaseDistribution]:
    """Returns the distribution of each of `params`, for `optuna.trial.create_trial`.

    Raises: ConfigError, as `SearchSpace.read`.
    """
    active = {p.name: p for p in space.parameters if p.name in space.read(params)}
    # `suggest_*` is the only translation to distributions; a fixed trial records what it is given.
    trial = FixedTrial({n: p.choices[0] if p.choices else p.low for n, p in active.items()})
    for parameter in active.values():
        _suggest(parameter, trial)
    return trial.distributions


def _suggest(parameter: Parameter, trial: BaseTrial) -> Any:
    name, low, high = parameter.name, parameter.low, parameter.high
    if parameter.kind == "categorical":
        return trial.suggest_categorical(name, parameter.choices)
    assert low is not None and high is not None
    if parameter.kind == "float":
        step = parameter.step
        return trial.suggest_float(name, float(low), float(high), step=step, log=parameter.log)
    step = int(parameter.step or 1)
    return trial.suggest_int(name, int(low), int(high), step=step, log=parameter.log)
