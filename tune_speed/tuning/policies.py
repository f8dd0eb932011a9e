"""Policies by the names that study files and simulations use."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import ConfigError
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.baselines.plain import Plain
from tune_speed.tuning.policy.base import CostOf, Earlier, Policy, SearchTarget
from tune_speed.tuning.policy.time_to_target import TimeToTarget

DEFAULT_SAMPLER = "gain"


def make_policy(
    name: str,
    *,
    space: SearchSpace,
    goal: SearchTarget,
    cost_of: CostOf,
    seed: int,
    sampler: str = DEFAULT_SAMPLER,
    points: Sequence[Mapping[str, Any]] = (),
    earlier: Sequence[Earlier] = (),
    storage: str | None = None,
    study_name: str = "",
) -> Policy:
    """Returns a new policy of that name; what follows `seed` is for `time_to_target` alone.

    Raises: ConfigError if there is no policy of that name.
    """
    if name == "time_to_target":
        return TimeToTarget(
            space=space,
            goal=goal,
            cost_of=cost_of,
            seed=seed,
            sampler=sampler,
            points=points,
            earlier=earlier,
            storage=storage,
            study_name=study_name,
        )
    if name not in PLAIN_POLICIES:
        known = ", ".join(POLICY_NAMES)
        hint = did_you_mean(name, POLICY_NAMES)
        raise ConfigError(f"a policy must be one of {known}, but got {name}{hint or '.'}")
    return PLAIN_POLICIES[name](space, goal, seed)


def _vanilla(space: SearchSpace, goal: SearchTarget, seed: int) -> Policy:
    from tune_speed.tuning.baselines.ray_tune import (
        Vanilla,  # Ray's searchers take a second to import.
    )

    return Vanilla(space=space, goal=goal, seed=seed)


def _tpe_penalty(space: SearchSpace, goal: SearchTarget, seed: int) -> Policy:
    return Plain(space=space, goal=goal, sampler="tpe", is_capped=False, seed=seed)


def _random(space: SearchSpace, goal: SearchTarget, seed: int) -> Policy:
    return Plain(space=space, goal=goal, sampler="random", is_capped=False, seed=seed)


def _random_cap(space: SearchSpace, goal: SearchTarget, seed: int) -> Policy:
    return Plain(space=space, goal=goal, sampler="random", is_capped=True, seed=seed)


PLAIN_POLICIES: dict[str, Callable[[SearchSpace, SearchTarget, int], Policy]] = {
    "vanilla": _vanilla,
    "tpe_penalty": _tpe_penalty,
    "random": _random,
    "random_cap": _random_cap,
}
"""To compare with."""

POLICY_NAMES = ("time_to_target", *PLAIN_POLICIES)
