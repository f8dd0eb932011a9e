"""The cost clock over several types of device: each has its speed and its price."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from several_devices import NEW_IS_CHEAP, OLD_IS_CHEAP, SeveralTypes

from tune_speed.core.records import Status
from tune_speed.study.space import space_of
from tune_speed.tuning.policies import make_policy
from tune_speed.tuning.policy.base import Cost, Outcome, Proposal, SearchTarget
from tune_speed.tuning.policy.cost_clock import WORDS, Rates
from tune_speed.tuning.policy.curve import Curve
from tune_speed.tuning.policy.settings import Parts
from tune_speed.tuning.simulation.simulate import simulate
from tune_speed.tuning.simulation.synthetic import Synthetic

RECIPE = {"x": {"low": 0.0, "high": 1.0}, "devices": {"choices": [1, 2]}}
SPACE = space_of({"recipe": RECIPE, "search": {"resources": {"device_types": ["new", "old"]}}})
PRICES = {"new": 36.0, "old": 3.6}
"""A second of `old` costs 0.001, one of `new` 0.01."""
RATES = Rates(SPACE, PRICES)
RUN_S = {"new": 3.0, "old": 12.0}
"""A run on `new` costs 0.03, one on `old` 0.012."""


def cost_of(params: Mapping[str, Any]) -> Cost:
    """A short run, at x = 0.9, would cost 0.0115 on `new`."""
    return Cost(1.15 if params["x"] == 0.9 else RUN_S[params["device_type"]])


def met(number: int, device_type: str) -> tuple[Proposal, Outcome]:
    params = {"x": 0.1 * number, "devices": 1, "device_type": device_type}
    end_s = RUN_S[device_type]
    curve = Curve(np.array([end_s / 2, end_s]), np.array([0.7, 0.95]))
    return Proposal(f"t{number:04d}", params), Outcome(Status.REACHED, end_s, curve)


def policy_of(rates: Rates | None) -> Any:
    return make_policy(
        "time_to_target",
        space=SPACE,
        target=SearchTarget(0.9, "fixed_length", 100.0),
        cost_of=cost_of,
        seed=0,
        rates=rates,
        parts=Parts(audit_share=0.0),
    )


def test_rates_are_price_of_the_type_times_devices() -> None:
    assert RATES.least_per_s == pytest.approx(0.001) and RATES.most == pytest.approx(20)
    factors = {
        (device_type, n): RATES.factor({"device_type": device_type, "devices": n})
        for device_type in PRICES
        for n in (1, 2)
    }
    assert factors == pytest.approx({("old", 1): 1, ("old", 2): 2, ("new", 1): 10, ("new", 2): 20})


def test_the_fast_type_is_soonest_and_the_cheap_one_cheapest() -> None:
    by_time, by_cost = policy_of(None), policy_of(RATES)
    for policy in (by_time, by_cost):
        policy.restore(finished=[met(0, "new"), met(1, "old")], unfinished=())
    (soonest,), (cheapest,) = by_time.favourites, by_cost.favourites
    assert (soonest.trial_id, cheapest.trial_id) == ("t0000", "t0001")
    assert cheapest.expected_s == pytest.approx(12.0)
    assert cheapest.expected_cost == pytest.approx(0.012)


def test_a_run_is_stopped_at_the_same_money_on_each_type() -> None:
    """What costs 0.012 on `old` is 1.2 s on `new`, however soon a run there would end."""
    policy = policy_of(RATES)
    rival = Proposal("t0003", {"x": 0.9, "devices": 1, "device_type": "new"})
    policy.restore(finished=[met(n, "old") for n in range(3)], unfinished=[rival])
    assert policy.ask().trial_id == "t0003"
    limit_s = policy.favourites[0].expected_s / 10
    assert 1.1 < limit_s < 1.5
    assert policy.report("t0003", train_s=0.9 * limit_s, step=8, metric=0.1) is None
    reason = policy.report("t0003", train_s=1.01 * limit_s, step=8, metric=0.1)
    assert reason.startswith("stopped at") and reason.endswith(WORDS)


@pytest.mark.parametrize(
    ("by_cost", "prices", "best"),
    [
        (False, OLD_IS_CHEAP, "new"),
        (True, OLD_IS_CHEAP, "old"),
        (True, NEW_IS_CHEAP, "new"),
    ],
    ids=["by time", "by cost, the slow one cheap", "by cost, the slow one dear"],
)
def test_a_search_ends_on_the_type_that_is_best_in_truth(
    by_cost: bool, prices: Mapping[str, float], best: str
) -> None:
    """`new` is three times as fast; it costs 5 times as much an hour as `old`, or 1.8 times."""
    benchmark = SeveralTypes(Synthetic(0.3, "fixed_length"), by_cost=by_cost, prices=prices)
    budget_s = benchmark.full_run_s
    trace = simulate("time_to_target", benchmark, num_workers=2, budget_s=budget_s, seed=1)
    tried = {trial.params["device_type"] for trial in trace.trials}
    assert trace.recommended is not None and tried == {"new", "old"}
    assert trace.recommended["device_type"] == best
