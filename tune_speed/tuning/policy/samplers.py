"""Optuna's samplers by the names that a study file uses."""

import warnings
from collections.abc import Callable, Sequence

import optuna
from optuna.samplers import BaseSampler

from tune_speed.core.errors import ConfigError
from tune_speed.study.space import SearchSpace


def make_sampler(name: str, *, space: SearchSpace, seed: int) -> BaseSampler:
    """Returns a new sampler of that name. Raises: ConfigError if it cannot serve this space."""
    assert name in SAMPLERS, name
    with warnings.catch_warnings():
        # `group` (needed for conditional spaces), GP and QMC are marked experimental in Optuna 5.
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return SAMPLERS[name](space, seed)


def _tpe(space: SearchSpace, seed: int) -> BaseSampler:
    # Without `group`, multivariate TPE samples parameters that are only sometimes there at random.
    # `constant_liar` keeps concurrent trials apart.
    return optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)


def _gp(space: SearchSpace, seed: int) -> BaseSampler:
    return optuna.samplers.GPSampler(seed=seed)


def _cmaes(space: SearchSpace, seed: int) -> BaseSampler:
    return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)


def _nsga2(space: SearchSpace, seed: int) -> BaseSampler:
    return optuna.samplers.NSGAIISampler(seed=seed)


def _qmc(space: SearchSpace, seed: int) -> BaseSampler:
    return optuna.samplers.QMCSampler(seed=seed, scramble=True)


def _random(space: SearchSpace, seed: int) -> BaseSampler:
    return optuna.samplers.RandomSampler(seed=seed)


class _EveryPoint(optuna.samplers.BruteForceSampler):
    """Every point of a finite, also conditional, space once, in random order."""

    def after_trial(
        self,
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
        state: optuna.trial.TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Does nothing: Optuna's own would call `Study.stop`, which fails outside `optimize`."""


def _grid(space: SearchSpace, seed: int) -> BaseSampler:
    if space.size is None:
        raise ConfigError(
            "search.sampler: grid needs a space of finitely many points, but a float range has no"
            " `step`. Give every float range a step, or take another sampler."
        )
    return _EveryPoint(seed=seed)


def hush_optuna() -> None:
    """Leaves Optuna's notes on each new study out of what a user sees."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def quiet_study(sampler: BaseSampler) -> optuna.Study:
    """Returns a new study in memory that minimises, and logs warnings only."""
    hush_optuna()
    return optuna.create_study(direction="minimize", sampler=sampler)


SEEDED_EACH_TIME = frozenset({"gain", "tpe", "gp", "random"})
"""Samplers that keep nothing but random numbers from one proposal to the next."""

WITHOUT_CONSTRAINTS = frozenset({"cmaes"})
"""Samplers that learn from values but take no notice of constraints."""

SAMPLERS: dict[str, Callable[[SearchSpace, int], BaseSampler]] = {
    "gain": _random,  # The policy proposes itself; Optuna only hears of it.
    "tpe": _tpe,
    "gp": _gp,
    "cmaes": _cmaes,
    "nsga2": _nsga2,
    "qmc": _qmc,
    "random": _random,
    "grid": _grid,
}
