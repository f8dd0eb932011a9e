"""Policies to compare with, a flat penalty and a cap, and how much a function does."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import tune_speed
from tune_speed.core.words import StopKind, StopReason
from tune_speed.tuning.baselines.plain import Plain
from tune_speed.tuning.policy.base import Cost, Leader, Policy, Problem, SearchTarget
from tune_speed.tuning.simulation.benchmarks import Factory
from tune_speed.tuning.simulation.simulate import Benchmark


class Capped(Plain):
    """Stops a trial at the best time to target."""

    def report(
        self, trial_id: str, *, train_s: float, step: int, metric: float
    ) -> StopReason | None:
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
    return Capped(problem_of(benchmark, seed))


def tpe_penalty(benchmark: Benchmark, seed: int) -> Policy:
    """TPE with a flat penalty for a miss."""
    return Plain(problem_of(benchmark, seed), sampler="tpe")


def problem_of(benchmark: Benchmark, seed: int) -> Problem:
    target = SearchTarget(benchmark.target, benchmark.mode, math.inf)
    return Problem(
        benchmark.space, target, lambda params: Cost(benchmark.predicted_cost(params)), seed
    )


FACTORIES: dict[str, Factory] = {"random_cap": random_cap, "tpe_penalty": tpe_penalty}

# --- How much a function does, by its calls: the same on a busy machine, and under coverage

PACKAGE = str(Path(tune_speed.__file__).parent)


def count_calls(function: Callable[[], object]) -> int:
    """Returns how many functions are called while `function` runs: the package's, and C's by it."""
    # Not slipcover's: its probes, and now and then a search of all objects for code.
    count = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        is_probe = event == "c_call" and "slipcover" in str(getattr(argument, "__module__", ""))
        is_ours = frame.f_code.co_filename.startswith(PACKAGE) and not is_probe
        count += event in ("call", "c_call") and is_ours

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
