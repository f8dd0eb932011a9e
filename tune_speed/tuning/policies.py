"""Policies by the names that study files and simulations use."""

from collections.abc import Callable
from typing import Any

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError
from tune_speed.tuning.baselines.plain import Plain
from tune_speed.tuning.policy.base import Policy, Problem
from tune_speed.tuning.policy.best_within import BestWithin
from tune_speed.tuning.policy.time_to_target import TimeToTarget


def make_policy(name: str, problem: Problem, **ours: Any) -> Policy:
    """Returns a new policy; `ours` are further arguments of `TimeToTarget`. Raises: ConfigError."""
    if name == "time_to_target":
        return (BestWithin if problem.target.best else TimeToTarget)(problem, **ours)
    if name not in BASELINES:
        known = ", ".join(POLICY_NAMES)
        hint = did_you_mean(name, POLICY_NAMES)
        raise ConfigError(f"a policy must be one of {known}, but got {name}{hint or '.'}")
    return BASELINES[name](problem)


def _vanilla(problem: Problem) -> Policy:
    # Ray's searchers take a second to import.
    from tune_speed.tuning.baselines.ray_tune import Vanilla

    return Vanilla(problem)


BASELINES: dict[str, Callable[[Problem], Policy]] = {"vanilla": _vanilla, "random": Plain}
"""Policies to compare with."""

POLICY_NAMES = ("time_to_target", *BASELINES)
