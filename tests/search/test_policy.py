"""The policy alone: no Ray, no clock, outcomes made by hand."""

import math
from typing import Any

import optuna
import pytest

from tune_speed.records import Status
from tune_speed.search.policy import Outcome, Policy, Proposal
from tune_speed.search.space import SearchSpace

SPACE = SearchSpace.from_tree(
    {
        "optimizer": {
            "choices": {
                "sgd": {"lr": {"low": 0.01, "high": 1.0, "log": True}},
                "adamw": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}},
            }
        },
        "epochs": {"low": 1, "high": 8},
    }
)


def make_policy(**changes: Any) -> Policy:
    settings: dict[str, Any] = {
        "space": SPACE,
        "target": 0.9,
        "mode": "fixed_length",
        "max_train_s": 100.0,
        "sampler": "tpe",
        "seed": 0,
    }
    return Policy(**{**settings, **changes})


def outcome(status: Status, *, train_s: float = 2.0, best: float | None = 0.8) -> Outcome:
    return Outcome(status=status, train_s=train_s, best_metric=best, memory_ratio=0.25)


def told(policy: Policy) -> list[optuna.trial.FrozenTrial]:
    return policy._study.get_trials(deepcopy=False)


def ask(policy: Policy) -> Proposal:
    proposal = policy.ask()
    assert proposal is not None
    return proposal


def test_reached_trial_is_told_the_log_of_its_time_and_is_feasible() -> None:
    policy = make_policy()
    policy.finish(ask(policy).trial_id, outcome(Status.REACHED, train_s=7.0, best=0.95))
    trial = told(policy)[0]
    assert trial.value == pytest.approx(math.log(7.0))
    assert trial.constraints == {"gap": 0.0, "memory": -2.0}


def test_miss_is_told_how_far_off_it_was() -> None:
    policy = make_policy()
    policy.finish(ask(policy).trial_id, outcome(Status.MISSED, best=0.84))
    assert told(policy)[0].constraints["gap"] == pytest.approx(3.0)


def test_miss_after_passing_on_the_way_is_still_infeasible() -> None:
    policy = make_policy()
    policy.finish(ask(policy).trial_id, outcome(Status.MISSED, best=0.93))
    assert told(policy)[0].constraints["gap"] > 0


def test_out_of_memory_is_an_infeasible_outcome_not_a_failure() -> None:
    policy = make_policy()
    policy.finish(ask(policy).trial_id, Outcome(Status.OOM, 0.0, None, None))
    trial = told(policy)[0]
    assert trial.state == optuna.trial.TrialState.COMPLETE
    assert trial.constraints["memory"] == 1.0
    assert trial.value == pytest.approx(math.log(100.0))


@pytest.mark.parametrize("status", list(Status))
def test_nothing_is_left_running(status: Status) -> None:
    policy = make_policy()
    policy.finish(ask(policy).trial_id, outcome(status))
    expected = "FAIL" if status == Status.FAILED else "COMPLETE"
    assert [trial.state.name for trial in told(policy)] == [expected]


@pytest.mark.parametrize("sampler", ["tpe", "gp", "cmaes", "nsga2", "qmc", "random"])
def test_each_sampler_proposes_from_the_space_and_learns(sampler: str) -> None:
    policy = make_policy(sampler=sampler)
    for number in range(14):
        proposal = ask(policy)
        SPACE.build(proposal.params)
        status = (Status.REACHED, Status.MISSED, Status.OOM)[number % 3]
        policy.finish(proposal.trial_id, outcome(status, train_s=1.0 + number))
    assert policy.leader == ("t0000", 1.0)


def test_sampler_without_constraints_is_told_that_a_miss_is_worse_than_any_time() -> None:
    policy = make_policy(sampler="cmaes")
    policy.finish(ask(policy).trial_id, outcome(Status.REACHED, train_s=99.0))
    policy.finish(ask(policy).trial_id, outcome(Status.MISSED, train_s=1.0, best=0.86))
    policy.finish(ask(policy).trial_id, outcome(Status.MISSED, train_s=1.0, best=0.5))
    values = [trial.value for trial in told(policy)]
    assert values == pytest.approx(
        [math.log(99.0), math.log(100.0 * 3), math.log(100.0 * 21)],
    )


def test_grid_ends_when_every_point_was_tried() -> None:
    space = SearchSpace.from_tree({"a": {"choices": [1, 2]}, "b": {"low": 0, "high": 2}})
    policy = make_policy(space=space, sampler="grid")
    seen = []
    while (proposal := policy.ask()) is not None:
        seen.append(tuple(proposal.params.values()))
        policy.finish(proposal.trial_id, outcome(Status.MISSED))
    assert sorted(seen) == [(a, b) for a in (1, 2) for b in (0, 1, 2)]
    assert policy.is_exhausted


def test_finite_space_is_exhausted_without_repeats_by_tpe_too() -> None:
    space = SearchSpace.from_tree({"a": {"low": 0, "high": 3}})
    policy = make_policy(space=space)
    proposals = [proposal for _ in range(6) if (proposal := policy.ask()) is not None]
    values = [proposal.params["a"] for proposal in proposals]
    assert len(set(values)) == len(values) <= 4


def test_restored_policy_goes_on_where_the_ledger_stands() -> None:
    first = make_policy()
    finished = []
    for number in range(12):
        proposal = ask(first)
        result = outcome(Status.REACHED if number % 2 else Status.MISSED, train_s=9.0 - number / 2)
        first.finish(proposal.trial_id, result)
        finished.append((proposal, result))
    second = make_policy()
    second.restore(finished=finished, unfinished=[])
    assert second.leader == first.leader
    assert ask(second).trial_id == "t0012"
    for ours, theirs in zip(told(second), told(first), strict=False):
        assert (ours.params, ours.value, ours.constraints) == (
            theirs.params,
            theirs.value,
            theirs.constraints,
        )


def test_unfinished_trial_is_proposed_again_under_its_own_id() -> None:
    interrupted = Proposal("t0003", {"optimizer": "adamw", "optimizer.adamw.lr": 2e-3, "epochs": 5})
    policy = make_policy()
    policy.restore(finished=[], unfinished=[interrupted])
    assert ask(policy) == interrupted
    assert ask(policy).trial_id == "t0004"
    policy.finish("t0003", outcome(Status.REACHED))
    assert told(policy)[0].params == interrupted.params


def test_trial_taken_back_is_proposed_again_and_leaves_nothing_running() -> None:
    policy = make_policy()
    proposal = ask(policy)
    policy.retry(proposal)
    assert ask(policy) == proposal
    policy.finish(proposal.trial_id, outcome(Status.MISSED))
    assert [trial.state.name for trial in told(policy)] == ["FAIL", "COMPLETE"]


def test_anytime_trial_past_the_leaders_time_is_stopped_with_the_reason() -> None:
    policy = make_policy(mode="anytime")
    policy.finish(ask(policy).trial_id, outcome(Status.REACHED, train_s=10.0))
    second = ask(policy)
    report = {"step": 5, "metric": 0.5}
    assert policy.report(second.trial_id, train_s=9.9, **report) is None
    reason = policy.report(second.trial_id, train_s=10.1, **report)
    assert reason == "stopped at 10.1 s: leader t0000 met the target in 10.0 s"


def test_fixed_length_trial_goes_to_its_end() -> None:
    policy = make_policy()
    policy.finish(ask(policy).trial_id, outcome(Status.REACHED, train_s=1.0))
    second = ask(policy)
    assert policy.report(second.trial_id, train_s=99.0, step=5, metric=0.5) is None
