"""Optuna's samplers by the names that a study file uses."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import optuna
from optuna import samplers
from optuna.samplers import BaseSampler

from tune_speed.core.errors import ConfigError
from tune_speed.study.space import SearchSpace


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
    """Returns a new study in memory that minimises, and logs warnings only."""
    hush_optuna()
    return optuna.create_study(direction="minimize", sampler=sampler)


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
