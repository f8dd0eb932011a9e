import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import qmc

from tune_speed.core.records import Recommended, Status
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.acquisition import Candidate
from tune_speed.tuning.policy.base import (
    AcquisitionSettings,
    Cost,
    Leader,
    Outcome,
    Parts,
    PriorTrial,
    Problem,
    Proposal,
    SearchTarget,
)
from tune_speed.tuning.policy.curve import GAP_UNIT, Curve
from tune_speed.tuning.policy.optuna_study import Sampling
from tune_speed.tuning.policy.time_to_target import TimeToTarget
from tune_speed.tuning.policy.trials import LUCK

SPACE = SearchSpace.from_tree(
    {"x": {"low": 0.0, "high": 1.0}, "epochs": {"low": 1, "high": 40}, "fixed": 3}
)


def make_policy(mode: Any = "fixed_length", *, limit_s: float = 100.0, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "space": SPACE,
        "target": SearchTarget(0.9, mode, limit_s),
        "cost_of": lambda params: Cost(2.0 * params["epochs"]),
        "seed": 3,
    }
    problem = Problem(**{name: changes.pop(name, settings[name]) for name in settings})
    return TimeToTarget(problem, sampling=Sampling(changes.pop("sampler", "gain")), **changes)


def sobol(num: int, seed: int = 3) -> np.ndarray:
    return qmc.Sobol(2, scramble=True, rng=np.random.default_rng([seed, 7])).random(64)[:num]


def curve(*points: tuple[float, float]) -> Curve:
    seconds, metric = (np.array(values) for values in zip(*points, strict=True))
    return Curve(seconds, metric)


def prior(status: Status, train_s: float, metric: float | None, x: float) -> PriorTrial:
    found = Curve(np.empty(0), np.empty(0)) if metric is None else curve((train_s, metric))
    return PriorTrial({"x": x, "epochs": 5}, Outcome(status, train_s, found), same_times=True)


def test_three_best_trials_of_other_studies_are_repeated_first() -> None:
    others = [
        prior(Status.MISSED, 1.0, 0.85, 0.1),
        prior(Status.REACHED, 9.0, 0.91, 0.2),
        prior(Status.OOM, 0.0, None, 0.3),
        prior(Status.MISSED, 2.0, 0.89, 0.4),
        prior(Status.REACHED, 4.0, 0.95, 0.5),
        prior(Status.CAPPED, 0.5, 0.88, 0.6),
    ]
    policy = make_policy(points=[{"x": 0.9, "epochs": 2}], prior_trials=others)
    tried = [policy.ask() for _ in range(5)]
    assert [proposal.params["x"] for proposal in tried[:4]] == [0.9, 0.5, 0.2, 0.4]
    assert {proposal.reason.kind for proposal in tried[:4]} == {"point"}
    assert tried[4].reason.kind != "point"


def test_point_that_was_tried_already_is_not_repeated() -> None:
    policy = make_policy(points=[{"x": 0.5, "epochs": 2}] * 2)
    assert policy.ask().reason.kind == "point"
    assert policy.ask().reason.kind == "start"


def test_points_that_are_added_before_a_search_goes_on_are_tried_next() -> None:
    begun = make_policy(points=[{"epochs": 7}])
    done = [begun.ask() for _ in range(3)]
    outcome = Outcome(Status.MISSED, 1.0, curve((1.0, 0.5)))
    points = [{"x": 0.25, "epochs": 3}, {"epochs": 7}, {"epochs": 9}]
    policy = make_policy(points=points)
    policy.restore(finished=[(each, outcome) for each in done[:2]], unfinished=done[2:])
    asked = [policy.ask() for _ in range(4)]
    assert asked[0] == done[2]
    assert [proposal.params["epochs"] for proposal in asked[1:3]] == [3, 9]
    assert [proposal.reason.kind == "point" for proposal in asked[1:]] == [
        True,
        True,
        False,
    ]


def test_what_a_point_leaves_out_is_from_the_even_sequence() -> None:
    policy = make_policy(points=[{"epochs": 7}, {"x": 0.123456789012}])
    first, second = policy.ask().params, policy.ask().params
    even = sobol(2)
    assert first == {"x": pytest.approx(even[0, 0]), "epochs": 7}
    assert second["x"] == 0.123456789012
    assert second["epochs"] == policy._encoder.params(even[1:])[0]["epochs"]


def test_even_draws_follow_the_sequence_then_come_in_growing_numbers() -> None:
    policy, rng = make_policy(), np.random.default_rng(0)
    # 12 starts took three each: the place of the next is 12 x 2 further.
    drawn = list(policy._spread.units(12, rng))
    np.testing.assert_array_equal(drawn[0], sobol(64)[36:37])
    assert [len(units) for units in drawn] == [1, 8, 64, 1024]
    assert all(units.shape[1] == 2 for units in drawn)
    for number, lengths in ((4096 - 25, [1, 8, 64, 1024]), (4096 - 24, [8, 64, 1024])):
        assert [len(units) for units in policy._spread.units(number, rng)] == lengths


def test_start_is_the_cheapest_of_its_own_three_points() -> None:
    policy = make_policy()
    every = policy._encoder.params(sobol(36))
    for number in range(12):
        three = every[3 * number : 3 * number + 3]
        proposal = policy.ask()
        cheapest = min(three, key=lambda params: params["epochs"])
        assert proposal.params == cheapest
        cost_s = 2.0 * cheapest["epochs"]
        assert str(proposal.reason) == f"start: spread evenly, {cost_s:.1f} s the cheapest of 3"


def test_start_compares_known_costs_alone_and_needs_two() -> None:
    def cost_of(num_unknown: int) -> Any:
        every = make_policy()._encoder.params(sobol(3))
        unknown = [params["epochs"] for params in every[:num_unknown]]
        return lambda params: None if params["epochs"] in unknown else Cost(2.0 * params["epochs"])

    assert str(make_policy(cost_of=cost_of(1)).ask().reason).endswith(" s the cheapest of 2")
    assert str(make_policy(cost_of=cost_of(2)).ask().reason) == "start: spread evenly"


def finish(policy: Any, proposal: Proposal, status: Status, *points: tuple[float, float]) -> None:
    policy.finish(proposal.trial_id, Outcome(status, points[-1][0], curve(*points)))


def miss(policy: Any, num: int) -> list[str]:
    reasons = []
    for _ in range(num):
        proposal = policy.ask()
        reasons.append(proposal.reason)
        end_s = 2.0 * proposal.params["epochs"]
        metric = 0.5 + 0.3 * proposal.params["x"]
        finish(policy, proposal, Status.MISSED, (end_s / 2, metric - 0.05), (end_s, metric))
    return reasons


def test_model_proposes_after_the_start_unless_it_sees_no_chance() -> None:
    some, never = (AcquisitionSettings(least_chance=chance) for chance in (0.0, 1.01))
    quick = {"start_runs": math.inf, "num_start": 5, "explore_every": 0, "acquisition": some}
    usual = miss(make_policy(parts=Parts(**quick)), 7)
    assert all(reason.kind == "start" for reason in usual[:5])
    assert all(reason.kind == "nearer" for reason in usual[5:])
    sober = miss(make_policy(parts=Parts(**{**quick, "acquisition": never})), 7)
    assert [reason.kind for reason in sober[5:]] == ["no_chance"] * 2
    explored = miss(make_policy(parts=Parts(**{**quick, "explore_every": 3})), 7)
    assert [reason.kind for reason in explored[5:]] == ["nearer", "exploration"]


@pytest.mark.parametrize(("num_fit", "is_modelled"), [(2, False), (3, True)])
def test_model_needs_three_runs_that_fitted_into_memory(num_fit: int, is_modelled: bool) -> None:
    parts = Parts(num_start=5, explore_every=0, start_runs=math.inf)
    policy = make_policy(parts=parts)
    miss(policy, num_fit)
    for _ in range(5 - num_fit):
        policy.finish(policy.ask().trial_id, Outcome(Status.OOM, 0.0))
    reason = policy.ask().reason
    assert (reason.kind == "nearer") == is_modelled
    assert is_modelled or reason.kind == "no_chance"


@pytest.mark.parametrize(("num_start", "num_more"), [(2, 2), (4, 4), (12, 4)])
def test_start_goes_on_until_four_runs_have_finished(num_start: int, num_more: int) -> None:
    # Each takes as long as the longest, which ends a start by itself.
    parts = Parts(num_start=num_start, explore_every=0)
    policy = make_policy(parts=parts, cost_of=lambda params: Cost(50.0))
    reasons = []
    for number in range(6):
        proposal = policy.ask()
        reasons.append(proposal.reason)
        finish(policy, proposal, Status.MISSED, (25.0, 0.4), (50.0, 0.5 + 0.01 * number))
    assert [reason.kind == "start" for reason in reasons] == [
        number < num_more for number in range(6)
    ]


def test_start_is_over_when_it_took_as_long_as_its_longest_run() -> None:
    for took_s, is_start in ((12.49, True), (12.5, False)):
        policy = make_policy(cost_of=lambda params: Cost(50.0))
        for _ in range(4):
            finish(policy, policy.ask(), Status.CAPPED, (took_s / 2, 0.4), (took_s, 0.5))
        assert (policy.ask().reason.kind == "start") == is_start


def test_time_to_be_beaten_is_that_of_what_is_recommended_or_twice_the_longest() -> None:
    policy = make_policy()
    slow = policy.ask()
    found = policy._objective(is_spread=False)
    assert found.best_s == 4.0 * slow.params["epochs"]
    assert found[1:] == (False, True, (1.0,), False, False, None, None)
    finish(policy, slow, Status.REACHED, (7.0, 0.95))
    found = policy._objective(is_spread=False)
    assert (found.best_s, *found[1:]) == (7.0, True, True, (1.0,), False, False, None, None)
    best = Recommended(trial_id="t0000", runs=1, hits=1, expected_s=9.0)
    policy._history.favourites = (best,)
    found = policy._objective(is_spread=False)
    assert (found.best_s, *found[1:]) == (9.0, True, True, (1.0,), False, False, None, None)
    unknown = make_policy(cost_of=lambda params: None, limit_s=math.inf)
    assert unknown._objective(is_spread=False).best_s == 1.0
    free = make_policy("anytime")
    finish(free, free.ask(), Status.REACHED, (7.0, 0.95))
    # The axis ends where a lucky run's configuration may take.
    beat_s = 7.0 * (1 + LUCK)
    assert free._objective(is_spread=False)[:3] == (
        beat_s,
        True,
        False,
    )


def candidate(**changes: Any) -> Candidate:
    made = Candidate(np.zeros(2), {}, cost_s=12.34, chance=0.841)
    return made._replace(**changes)


def test_reasons_say_chance_cost_and_who_leads() -> None:
    policy = make_policy()
    assert str(policy._reason(candidate())) == (
        "gain: 84% likely to come nearer the target than any so far at a cost of 12.3 s"
    )
    assert str(policy._reason(candidate(cost_s=math.nan))) == (
        "gain: 84% likely to come nearer the target than any so far"
    )
    policy._history.leader = Leader("t0001", 21.0)
    assert str(policy._reason(candidate())) == (
        "gain: 84% likely to meet the target at a cost of 12.3 s, 21.0 s to beat"
    )


def test_what_optuna_hears_of_an_end() -> None:
    def ended(sampler: str, status: Status, *points: tuple[float, float]) -> float:
        policy = make_policy(sampler=sampler)
        trial_id = policy.ask().trial_id
        found = curve(*points) if points else Curve(np.empty(0), np.empty(0))
        return float(policy._end_of(policy._history.finish(trial_id, Outcome(status, 5.0, found))))

    start, near = -math.log(46), -math.log(2)
    for sampler in ("gain", "tpe"):
        assert ended(sampler, Status.MISSED, (1.0, 0.88), (5.0, 0.3)) == pytest.approx(near)
        assert ended(sampler, Status.REACHED, (5.0, 0.92)) == pytest.approx(math.log(2))
        for status in (Status.DIVERGED, Status.OOM, Status.FAILED):
            assert ended(sampler, status, (5.0, 0.88)) == pytest.approx(start)
        assert ended(sampler, Status.MISSED) == pytest.approx(start)
    # A stopped run would have gone on; who proposes without Optuna does not need to know.
    assert ended("gain", Status.CAPPED, (1.0, 0.5), (5.0, 0.88)) == pytest.approx(near)
    assert ended("random", Status.CAPPED, (1.0, 0.5), (5.0, 0.88)) > near


def test_too_long_is_from_the_leaders_time_on_and_what_is_unknown_is_allowed() -> None:
    policy = make_policy()
    finish(policy, policy.ask(), Status.REACHED, (10.0, 0.95))
    assert [policy._allowed({"x": 0.7, "epochs": n}) for n in (4, 5, 6)] == [8.0, None, None]
    free = make_policy("anytime")
    finish(free, free.ask(), Status.REACHED, (10.0, 0.95))
    assert free._allowed({"x": 0.7, "epochs": 6}) == 12.0
    unknown = make_policy(cost_of=lambda params: None)
    assert math.isnan(unknown._allowed({"x": 0.7, "epochs": 6}))
    unknown._history.count(Proposal("t0000", {"x": 0.7, "epochs": 6}))
    assert unknown._allowed({"x": 0.7, "epochs": 6}) is None


def test_trial_that_is_taken_back_runs_no_more_until_it_is_proposed_again() -> None:
    for method in ("retry", "withdraw"):
        policy = make_policy(sampler="random")
        proposal = policy.ask()
        getattr(policy, method)(proposal if method == "retry" else proposal.trial_id)
        assert not policy._history.running
        (told,) = policy._optuna._study.get_trials(deepcopy=False)
        assert told.state.name == "FAIL"
        again = policy.ask()
        assert (again == proposal) == (method == "retry")
        assert list(policy._history.running) == [again.trial_id]


@pytest.mark.parametrize("spread", [0.002, 0.01])
def test_noise_is_known_from_the_runs_of_earlier_studies(spread: float) -> None:
    """Ten configurations near the target, four runs each: without them it would be a guess."""
    drawn = np.random.default_rng(0).normal(0.0, spread, (10, 4))
    ends = np.linspace(0.89, 0.91, 10)[:, None] + drawn
    earlier = [
        prior(Status.REACHED if end >= 0.9 else Status.MISSED, 10.0, float(end), x)
        for x, runs in zip(np.linspace(0.0, 1.0, 10), ends, strict=True)
        for end in runs
    ]
    policy = make_policy(prior_trials=earlier)
    policy._learned.update()
    within = np.sqrt(drawn.var(axis=1, ddof=1).mean()) / GAP_UNIT
    assert policy._learned.model.process.noise_sd == pytest.approx(within, rel=0.35)
