"""Optuna's samplers by the names of study files, and the search space in Optuna's terms."""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import optuna
from optuna import samplers
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import BaseTrial, FixedTrial, FrozenTrial, TrialState, create_trial

from tune_speed.core.errors import ConfigError
from tune_speed.study.parameter import Parameter
from tune_speed.study.space import Params, SearchSpace


def make_sampler(name: str, *, space: SearchSpace, seed: int) -> BaseSampler:
    """Returns a new sampler of that name. Raises: ConfigError if it cannot serve this space."""
    if name == "grid" and space.size is None:
        raise ConfigError(
            "search.sampler: grid needs a space of finitely many points, but a float range has no"
            " `step`. Give every float range a step, or take another sampler."
        )
    with warnings.catch_warnings():
        # `group` (needed for conditional spaces), GP and QMC are marked experimental in Optuna 5.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return SAMPLERS[name](seed=seed)


class _EveryPoint(samplers.BruteForceSampler):
    """Every point of a finite, also conditional, space once, in random order."""

    def after_trial(self, *_: Any, **__: Any) -> None:
        """Does nothing: Optuna's own would call `Study.stop`, which fails outside `optimize`."""


def hush_optuna() -> None:
    """Hides Optuna's message about each new study."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def quiet_study(sampler: BaseSampler) -> optuna.Study:
    hush_optuna()
    return optuna.create_study(direction="minimize", sampler=sampler)


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


def ended_trial(
    space: SearchSpace, params: Mapping[str, Any], value: float | None, **more: Any
) -> FrozenTrial:
    """Returns a finished trial for `Study.add_trial`, as FAIL without a value."""
    return create_trial(
        state=TrialState.FAIL if value is None else TrialState.COMPLETE,
        params=space.read(params),
        distributions=distributions(space, params),
        value=value,
        **more,
    )


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


# Samplers whose only state is their random generator.
SEEDED_EACH_TIME = frozenset({"gain", "tpe", "gp", "random"})

WITHOUT_CONSTRAINTS = frozenset({"cmaes"})
"""Samplers that ignore constraints."""

SAMPLERS: dict[str, Callable[..., BaseSampler]] = {
    "gain": samplers.RandomSampler,  # The policy proposes itself and only reports trials to Optuna.
    # Without `group`, multivariate TPE samples conditional parameters at random. `constant_liar`
    # keeps concurrent trials apart.
    "tpe": partial(samplers.TPESampler, multivariate=True, group=True, constant_liar=True),
    "gp": samplers.GPSampler,
    "cmaes": partial(samplers.CmaEsSampler, warn_independent_sampling=False),
    "nsga2": samplers.NSGAIISampler,
    "qmc": partial(samplers.QMCSampler, scramble=True),
    "random": samplers.RandomSampler,
    "grid": _EveryPoint,
}
