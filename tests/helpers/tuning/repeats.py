"""Runs of configurations that differ by luck, and a policy that has seen them."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tune_speed.core.records import Status
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.base import Cost, Outcome, Parts, Problem, Proposal, SearchTarget
from tune_speed.tuning.policy.curve import Curve
from tune_speed.tuning.policy.time_to_target import TimeToTarget

SPACE = SearchSpace.from_tree({"x": {"low": 0.0, "high": 1.0}, "epochs": {"low": 1, "high": 12}})
Log = list[tuple[Proposal, Outcome]]


def cost_of(params: Mapping[str, Any]) -> Cost:
    return Cost(2.0 * params["epochs"])


def make_policy(mode: Any = "fixed_length", **parts: Any) -> TimeToTarget:
    problem = Problem(SPACE, SearchTarget(0.9, mode, 100.0), cost_of, seed=0)
    return TimeToTarget(problem, parts=Parts(**{"audit_share": 0.0, **parts}))


def ended(number: int, x: float, epochs: int, end: float) -> tuple[Proposal, Outcome]:
    """Returns a run of two seconds an epoch, and how near the target it came."""
    params, end_s = {"x": x, "epochs": epochs}, 2.0 * epochs
    curve = Curve(np.array([end_s / 2, end_s]), np.array([end - 0.05, end]))
    status = Status.REACHED if end >= 0.9 else Status.MISSED
    return Proposal(f"t{number:04d}", params), Outcome(status, end_s, curve)


def log_of(runs: Iterable[tuple[float, int, float]]) -> Log:
    return [ended(number, *run) for number, run in enumerate(runs)]


# Short runs miss, or miss by little; of five epochs one in nine met the target.
SHORT = [(x, 3, 0.82) for x in (0.1, 0.4, 0.7)]
ALMOST = [(x, 5, 0.890 + 0.003 * (i % 2)) for i, x in enumerate((0.3, 0.35, 0.38, 0.42, 0.45, 0.5))]
LUCKY = (0.4, 5, 0.9004)
SURE = [(0.4, 6, end) for end in (0.908, 0.911, 0.912, 0.909)]
SEEN = log_of([*SHORT, *ALMOST, LUCKY, *SURE])
LUCKY_ID, SURE_ID = "t0009", "t0012"  # Of four, the one with the best end.


def restored(log: Log = SEEN, *, unfinished: Iterable[Proposal] = (), **parts: Any) -> TimeToTarget:
    policy = make_policy(**parts)
    policy.restore(finished=log, unfinished=unfinished)
    return policy


def ask(policy: TimeToTarget) -> Proposal:
    proposal = policy.ask()
    assert proposal is not None
    return proposal


# Two that hit now and then, of which either may be the better one.
RIVALS = log_of(
    [
        *SHORT,
        *[(x, 5, end) for x, end in ((0.1, 0.86), (0.7, 0.87), (0.9, 0.84))],
        *[(0.4, 5, end) for end in (0.912, 0.886)],
        *[(0.45, 6, end) for end in (0.917, 0.889, 0.915)],
    ]
)
TRIED = [proposal.params for proposal, _ in RIVALS]
