import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from tune_speed.core.records import Status
from tune_speed.core.text import Interval
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policies import POLICY_NAMES, make_policy
from tune_speed.tuning.policy.base import Cost, Outcome, Parts, Problem, Proposal, SearchTarget
from tune_speed.tuning.policy.best_within import BestWithin
from tune_speed.tuning.policy.curve import Curve, distance, metric_at
from tune_speed.tuning.policy.expected_time import gain_of_metric

SPACE = SearchSpace.from_tree({"x": {"low": 0.0, "high": 1.0}, "epochs": {"low": 1, "high": 40}})
LIMIT_S = 20.0


def cost_of(params: Mapping[str, Any]) -> Cost:
    return Cost(1.0 * params["epochs"], num_steps=params["epochs"])


def policy_of(name: str = "time_to_target", **parts: Any) -> Any:
    target = SearchTarget(0.01, "fixed_length", LIMIT_S, best=True)
    ours = {"parts": Parts(audit_share=0.0, **parts)} if name == "time_to_target" else {}
    return make_policy(name, Problem(SPACE, target, cost_of, seed=0), **ours)


def ended(number: int, epochs: int, x: float = 0.4, luck: float = 0.0) -> tuple[Proposal, Outcome]:
    """Returns a run whose error at the end is 1 / epochs and |x − 0.4|."""
    end = 1 - 1 / (epochs + 1) - abs(x - 0.4) + luck
    clock = np.array([epochs / 2, float(epochs)])
    proposal = Proposal(f"t{number:04d}", {"x": x, "epochs": epochs})
    curve = Curve(clock, np.array([end - 0.1, end]))
    return proposal, Outcome(Status.REACHED, float(epochs), curve)


SEEN = [
    *(ended(n, epochs, x) for n, (epochs, x) in enumerate([(4, 0.4), (8, 0.4), (16, 0.4)])),
    *(ended(n, epochs, x) for n, (epochs, x) in enumerate([(8, 0.1), (16, 0.9), (4, 0.7)], 3)),
    *(ended(n, epochs, x) for n, (epochs, x) in enumerate([(12, 0.4), (12, 0.5)], 6)),
]


def restored(*more: tuple[Proposal, Outcome], **parts: Any) -> BestWithin:
    policy = policy_of(**parts)
    assert isinstance(policy, BestWithin)
    policy.restore(finished=[*SEEN, *more], unfinished=())
    return policy


@given(st.floats(-3, 3), st.floats(0.05, 2), st.floats(0, 2), st.floats(-3, 3))
def test_gain_is_the_expected_rise_of_the_best_mean(
    mean: float, sd: float, noise_sd: float, to_beat: float
) -> None:
    moved = sd**2 / math.hypot(sd, noise_sd)
    expected, _ = quad(
        lambda z: max(0.0, to_beat + mean + moved * z) * norm.pdf(z),
        -12,
        12,
        points=[min(12, max(-12, -(to_beat + mean) / moved))],
        limit=200,
    )
    told = gain_of_metric(np.array([mean]), np.array([sd]), noise_sd, to_beat=np.array([to_beat]))
    assert told[0] == pytest.approx(expected, abs=1e-6)


@given(st.floats(0, 1), st.floats(0.01, 1))
def test_a_distance_and_its_metric_are_inverse(metric: float, level: float) -> None:
    assert metric_at(distance(metric, level), level) == pytest.approx(metric, abs=1e-9)


def test_the_best_end_leads_and_not_the_shortest_time() -> None:
    policy = restored()
    assert policy.leader is not None and policy.leader.trial_id == "t0002"


def test_what_is_recommended_is_the_best_mean_and_not_the_luckiest_run() -> None:
    # Of one configuration, one run was lucky and three were not.
    poor = [
        ended(10 + n, 10, 0.45, luck=luck) for n, luck in enumerate((0.12, -0.06, -0.06, -0.06))
    ]
    policy = restored(*poor)
    assert policy.leader is not None and policy.leader.trial_id == "t0010"
    best = policy.favourites[0]
    assert best.trial_id == "t0002" and best.metric is not None and best.metric.ends is not None
    assert float(best.metric) == pytest.approx(1 - 1 / 17, abs=0.05)
    assert best.metric.ends[0] < best.metric.value < best.metric.ends[1]
    assert best.expected_s == 16.0 and best.runs == best.hits == 1


def test_what_is_as_long_as_the_limit_is_recommended_last() -> None:
    close = ended(20, 20, 0.4, luck=0.03)
    policy = restored(close)
    assert policy.leader is not None and policy.leader.trial_id == "t0020"
    assert policy.favourites[0].trial_id == "t0002"
    assert policy.favourites[-1].trial_id == "t0020"


def test_nothing_is_proposed_that_would_end_past_the_limit() -> None:
    policy = restored()
    for _ in range(30):
        proposal = policy.ask()
        assert proposal is not None and proposal.params["epochs"] < LIMIT_S
        policy.finish(proposal.trial_id, ended(0, **proposal.params)[1])
    assert float(policy.favourites[0].metric or 0.0) == pytest.approx(1 - 1 / 19, abs=0.02)


def test_what_is_likely_to_end_past_the_limit_is_not_tried_once_any_run_was_in_time() -> None:
    policy = policy_of()
    policy._history.cost_of = lambda params: Cost(1.0, guess_s=1.0 * params["epochs"])
    long, short = {"x": 0.2, "epochs": 19}, {"x": 0.2, "epochs": 18}
    assert policy._allowed(long) == 19.0
    policy.restore(finished=SEEN, unfinished=())
    assert policy._allowed(long) is None and policy._allowed(short) == 18.0


def test_a_run_that_goes_past_the_limit_is_stopped() -> None:
    policy = policy_of()
    proposal = Proposal("t0000", {"x": 0.4, "epochs": 40})
    policy.restore(finished=(), unfinished=[proposal])
    assert policy.ask() == proposal
    reason = policy.report("t0000", train_s=10.0, step=10, metric=0.5)
    assert reason is not None and reason.kind == "past_limit" and "end_s" in reason.figures


def test_at_the_end_of_the_budget_only_favourites_run() -> None:
    policy = restored()
    policy.spent = 0.9
    proposal = policy.ask()
    assert proposal is not None and str(proposal.reason).startswith("again: run 2 of t0002's")


def test_it_is_restored_as_it_was() -> None:
    straight, resumed = policy_of(), policy_of()
    done = []
    for _ in range(16):
        proposal = straight.ask()
        outcome = ended(0, **proposal.params)[1]
        straight.finish(proposal.trial_id, outcome)
        done.append((proposal, outcome))
    resumed.restore(finished=done, unfinished=())
    assert resumed.ask() == straight.ask()
    assert resumed.favourites == straight.favourites


@pytest.mark.parametrize("name", [name for name in POLICY_NAMES if name != "time_to_target"])
def test_baselines_seek_the_best_end_too(name: str) -> None:
    policy = policy_of(name)
    ends = {}
    for _ in range(12):
        proposal = policy.ask()
        outcome = ended(0, **proposal.params)[1]
        ends[proposal.trial_id] = outcome.curve.metric[-1]
        policy.finish(proposal.trial_id, outcome)
    best = max(ends, key=lambda trial_id: ends[trial_id])
    assert policy.leader is not None and policy.leader.trial_id == best
    found = policy.favourites[0]
    assert (found.trial_id, found.metric) == (best, Interval(*[ends[best]] * 3))
    assert found.text.endswith(f"s, which ended at {ends[best]:.4f}")
