"""The cost clock: the same decisions as by time where money is time, and others where it is not."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from several_devices import SeveralDevices

from tune_speed.core.records import Status
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policies import make_policy
from tune_speed.tuning.policy.base import Cost, Outcome, PriorTrial, Proposal, SearchTarget
from tune_speed.tuning.policy.cost_clock import WORDS, CostClock, Rates
from tune_speed.tuning.policy.curve import Curve
from tune_speed.tuning.policy.settings import Parts
from tune_speed.tuning.simulation.simulate import simulate
from tune_speed.tuning.simulation.synthetic import Synthetic

TREE = {
    "x": {"low": 0.0, "high": 1.0},
    "epochs": {"low": 1, "high": 40},
    "devices": {"choices": [1, 2, 4]},
}
SPACE = SearchSpace.from_tree(TREE)
RATES = Rates(SPACE, 3.6)
"""A second of one device costs 0.001."""


def cost_of(params: Mapping[str, Any]) -> Cost:
    """Two devices are 1.5 times as fast as one."""
    return Cost(params["epochs"] / 1.5 ** (params["devices"] - 1), num_steps=params["epochs"])


def policy_of(rates: Rates | None = RATES, lower: tuple[float, ...] = (), **more: Any) -> Any:
    weights = (1 / (1 + len(lower)),) * (1 + len(lower))
    return make_policy(
        "time_to_target",
        space=SPACE,
        target=SearchTarget(0.9, "fixed_length", 100.0, lower, weights),
        cost_of=cost_of,
        seed=0,
        rates=rates,
        parts=Parts(audit_share=0.0),
        **more,
    )


def met(number: int, devices: int, epochs: int = 12, x: float = 0.4) -> tuple[Proposal, Outcome]:
    params = {"x": x, "epochs": epochs, "devices": devices}
    end_s = cost_of(params).train_s
    curve = Curve(np.array([end_s / 2, end_s]), np.array([0.7, 0.95]))
    return Proposal(f"t{number:04d}", params), Outcome(Status.REACHED, end_s, curve)


def test_rates_are_price_times_devices() -> None:
    assert [RATES.factor({"devices": n}) for n in (1, 2, 4)] == [1, 2, 4]
    assert RATES.least_per_s == pytest.approx(0.001) and RATES.most == 4
    fixed = Rates(SearchSpace.from_tree({"devices": 4, "x": TREE["x"]}), 3.6)
    assert fixed.factor({}) == fixed.most == 1 and fixed.least_per_s == pytest.approx(0.004)


def test_two_devices_are_soonest_and_one_is_cheapest() -> None:
    """12 s on one device are 0.012; 8 s on two are 0.016."""
    seen = [met(0, 1), met(1, 2)]
    by_time, by_cost = policy_of(None), policy_of()
    for policy in (by_time, by_cost):
        policy.restore(finished=seen, unfinished=())
    (first,), (soonest,) = by_cost.favourites, by_time.favourites
    assert (soonest.trial_id, soonest.expected_cost) == ("t0001", None)
    assert (by_time.leader.trial_id, by_cost.leader) == ("t0001", ("t0000", 12.0))
    assert (first.trial_id, first.expected_s) == ("t0000", 12.0)
    assert first.expected_cost == pytest.approx(0.012)
    assert "expected cost 0.012" in first.text and "cost" not in soonest.text


def test_what_is_recommended_has_its_own_seconds_and_its_money() -> None:
    policy = policy_of()
    policy.restore(finished=[met(n, 1 + n % 2, x=0.1 * n) for n in range(8)], unfinished=())
    found = {each.trial_id: each for each in policy.favourites}
    assert len(found) == 8
    for number in range(8):
        each, devices = found[f"t{number:04d}"], 1 + number % 2
        assert each.expected_s >= 0.99 * (8.0 if devices == 2 else 12.0)
        assert each.expected_s < 1.3 * (8.0 if devices == 2 else 12.0)
        assert each.expected_cost == pytest.approx(each.expected_s * devices * 0.001)
    costs = [each.expected_cost for each in policy.favourites]
    assert costs == sorted(costs)


def test_a_run_is_stopped_at_the_same_money_whatever_its_devices() -> None:
    """With 12 s on one device to beat, another on two has 6 s left."""
    policy = policy_of()
    policy.restore(
        finished=[met(n, 1, x=0.1 * n) for n in range(3)],
        unfinished=[Proposal("t0003", {"x": 0.9, "epochs": 8, "devices": 2})],
    )
    assert policy.ask().trial_id == "t0003"
    limit_s = policy.favourites[0].expected_s / 2
    assert policy.report("t0003", train_s=0.9 * limit_s, step=8, metric=0.1) is None
    reason = policy.report("t0003", train_s=1.01 * limit_s, step=8, metric=0.1)
    assert reason.startswith("stopped at") and reason.endswith(WORDS)


def test_it_decides_as_a_policy_by_time_that_is_told_of_money() -> None:
    """The same search by a second policy, to which all times are told in money from outside."""

    def money_of(params: Mapping[str, Any]) -> Cost:
        cost = cost_of(params)
        return Cost(cost.train_s * params["devices"], cost.num_steps)

    own: dict[str, Any] = {"space": SPACE, "seed": 1, "parts": Parts(audit_share=0.0)}
    limit_s = 4.0
    target = SearchTarget(0.9, "fixed_length", limit_s)
    by_cost = make_policy("time_to_target", target=target, cost_of=cost_of, rates=RATES, **own)
    target = target._replace(max_train_s=4 * limit_s)
    told = make_policy("time_to_target", target=target, cost_of=money_of, **own)
    for number in range(40):
        by_cost.spent = told.spent = number / 40
        ours, theirs = by_cost.ask(), told.ask()
        assert ours is not None and ours == theirs
        params = ours.params
        end_s, times = cost_of(params).train_s, params["devices"]
        end = 1 - 1 / (1 + params["epochs"]) - abs(params["x"] - 0.4)
        clock, metric = np.array([end_s / 2, end_s]), np.array([end - 0.1, end])
        status = Status.REACHED if end >= 0.9 else Status.MISSED
        half = {"step": max(1, params["epochs"] // 2), "metric": float(metric[0])}
        reason = by_cost.report(ours.trial_id, train_s=end_s / 2, **half)
        other = told.report(ours.trial_id, train_s=times * end_s / 2, **half)
        assert reason == (None if other is None else other + WORDS)
        outcome = Outcome(status, end_s, Curve(clock, metric), planned_s=end_s)
        by_cost.finish(ours.trial_id, outcome)
        money_curve = Curve(times * clock, metric)
        money = outcome._replace(train_s=times * end_s, curve=money_curve, planned_s=times * end_s)
        told.finish(ours.trial_id, money)
    assert [r.trial_id for r in by_cost.favourites] == [r.trial_id for r in told.favourites]
    costs = [0.001 * each.expected_s for each in told.favourites]
    assert [each.expected_cost for each in by_cost.favourites] == pytest.approx(costs)


def test_on_one_number_of_devices_money_is_time() -> None:
    """The same proposals in the same order, as for a price alone."""
    space = SearchSpace.from_tree({**TREE, "devices": 2})
    found = []
    for rates in (None, Rates(space, 3.6)):
        policy = make_policy(
            "time_to_target",
            space=space,
            target=SearchTarget(0.9, "fixed_length", 100.0),
            cost_of=lambda params: Cost(float(params["epochs"])),
            seed=3,
            rates=rates,
        )
        params = []
        for _ in range(20):
            proposal = policy.ask()
            assert proposal is not None
            params.append(proposal.params)
            end_s, x = float(proposal.params["epochs"]), proposal.params["x"]
            metric = 1 - 1 / (1 + end_s) - abs(x - 0.4)
            status = Status.REACHED if metric >= 0.9 else Status.MISSED
            curve = Curve(np.array([end_s]), np.array([metric]))
            policy.finish(proposal.trial_id, Outcome(status, end_s, curve))
        found.append((params, [(r.trial_id, r.expected_s) for r in policy.favourites]))
    assert found[0] == found[1]


def test_several_targets_and_earlier_trials_are_told_of_money_too() -> None:
    proposal, outcome = met(0, 2)
    prior = [PriorTrial(proposal.params, outcome, same_times=True)]
    policy = policy_of(lower=(0.8,), prior_trials=prior)
    assert isinstance(policy, CostClock)
    policy.learn(prior[0])
    policy.restore(finished=[met(0, 1), met(1, 2)], unfinished=())
    (lower,) = policy.lower_favourites
    assert lower[0].trial_id == "t0000" and lower[0].expected_s == pytest.approx(12.0)
    assert policy.why_settled is None


@pytest.mark.parametrize("by_cost", [True, False])
@pytest.mark.parametrize("name", ["time_to_target", "random_cap"])
def test_least_time_is_on_two_devices_and_least_cost_on_one(name: str, by_cost: bool) -> None:
    """Two devices are 1.5 times as fast, and cost 2 / 1.5 times as much."""
    benchmark = SeveralDevices(Synthetic(0.3, "fixed_length"), by_cost=by_cost)
    budget_s = benchmark.full_run_s
    trace = simulate(name, benchmark, num_workers=2, budget_s=budget_s, seed=1)
    reached = [t for t in trace.trials if t.status is Status.REACHED]
    best = min(reached, key=lambda t: t.train_s * t.params["devices"] ** by_cost)
    assert trace.recommended is not None
    assert trace.recommended["devices"] == best.params["devices"]
    if name == "time_to_target":  # What is drawn at random is what it is.
        assert trace.recommended["devices"] == (1 if by_cost else 2)
