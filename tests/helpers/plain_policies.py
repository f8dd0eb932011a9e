"""Policies to compare with that the package does not have: a flat penalty, and a cap."""

from tune_speed.core.words import StopKind, StopReason
from tune_speed.tuning.baselines.plain import Plain
from tune_speed.tuning.policy.base import Leader, Policy, SearchTarget
from tune_speed.tuning.simulation.comparison import Factory
from tune_speed.tuning.simulation.simulate import Benchmark


class Capped(Plain):
    """Stops a trial at the best time to target."""

    def report(self, trial_id: str, *, train_s: float, step: int, metric: float) -> str | None:
        """Returns why to stop, where the leader's time has passed."""
        return None if self.leader is None else past_leader(self.leader, train_s)


def past_leader(leader: Leader, train_s: float) -> StopReason | None:
    """Returns why a trial whose clock is at `train_s` [s] can no longer lead, or None."""
    # The clock only grows, so this never stops a trial that would have led.
    time_s = leader.time_to_target_s
    if train_s <= time_s:
        return None
    return StopReason.of(StopKind.SLOWER, at_s=train_s, best=leader.trial_id, best_s=time_s)


def random_cap(benchmark: Benchmark, seed: int) -> Policy:
    """Draws at random, and stops a trial at the leader's time."""
    target = SearchTarget(benchmark.target, benchmark.mode, 1e9)
    return Capped(space=benchmark.space, target=target, seed=seed)


def tpe_penalty(benchmark: Benchmark, seed: int) -> Policy:
    """TPE with a flat penalty for a miss."""
    target = SearchTarget(benchmark.target, benchmark.mode, 1e9)
    return Plain(space=benchmark.space, target=target, sampler="tpe", seed=seed)


FACTORIES: dict[str, Factory] = {"random_cap": random_cap, "tpe_penalty": tpe_penalty}
