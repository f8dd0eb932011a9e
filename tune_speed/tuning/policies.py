"""Policies by the names that study files and simulations use."""

from collections.abc import Callable
from typing import Any

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.baselines.plain import Plain
from tune_speed.tuning.policy.base import CostOf, Policy, SearchTarget
from tune_speed.tuning.policy.best_within import BestWithin
from tune_speed.tuning.policy.time_to_target import TimeToTarget


def make_policy(
    name: str,
    *,
    space: SearchSpace,
    target: SearchTarget,
    cost_of: CostOf,
    seed: int,
    **ours: Any,
) -> Policy:
    """Returns a new policy; `ours` are further arguments of `TimeToTarget`. Raises: ConfigError."""
    if name == "time_to_target":
        policy = BestWithin if target.best else TimeToTarget
        return policy(space=space, target=target, cost_of=cost_of, seed=seed, **ours)
    if name not in BASELINES:
        known = ", ".join(POLICY_NAMES)
        hint = did_you_mean(name, POLICY_NAMES)
        raise ConfigError(f"a policy must be one of {known}, but got {name}{hint or '.'}")
    return BASELINES[name](space=space, target=target, seed=seed)


def _vanilla(**arguments: Any) -> Policy:
    # Ray's searchers take a second to import.
    from tune_speed.tuning.baselines.ray_tune import Vanilla

    return Vanilla(**arguments)


BASELINES: dict[str, Callable[..., Policy]] = {"vanilla": _vanilla, "random": Plain}
"""Policies to compare with."""

POLICY_NAMES = ("time_to_target", *BASELINES)
