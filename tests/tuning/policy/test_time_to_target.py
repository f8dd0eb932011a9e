import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tune_speed.core.records import Status
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.base import (
    Cost,
    Leader,
    Outcome,
    Parts,
    PriorTrial,
    Problem,
    Proposal,
    SearchTarget,
)
from tune_speed.tuning.policy.curve import Curve
from tune_speed.tuning.policy.optuna_study import Sampling
from tune_speed.tuning.policy.samplers import SAMPLERS
from tune_speed.tuning.policy.time_to_target import TimeToTarget

SPACE = SearchSpace.from_tree(
    {
        "optimizer": {
            "choices": {
                "sgd": {"lr": {"low": 0.01, "high": 1.0, "log": True}},
                "adamw": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}},
            }
        },
        "epochs": {"low": 1, "high": 40, "log": True},
    }
)
TARGET = 0.9


def cost_of(params: Any) -> Cost:
    return Cost(2.0 * params.get("epochs", 3))


def make_policy(**changes: Any) -> TimeToTarget:
    settings: dict[str, Any] = {
        "space": SPACE,
        "target": SearchTarget(TARGET, "fixed_length", 100.0),
        "cost_of": cost_of,
        "seed": 0,
    }
    problem = Problem(**{name: changes.pop(name, settings[name]) for name in settings})
    named = {"sampler": "name", "storage": "storage", "study_name": "study_name"}
    sampling = {name: changes.pop(each) for each, name in named.items() if each in changes}
    return TimeToTarget(problem, sampling=Sampling(**sampling), **changes)


def final(params: Any) -> float:
    """Accuracy of a made-up training: best with sgd at 0.1, and the longer the better."""
    name = params["optimizer"]
    off = math.log10(params[f"optimizer.{name}.lr"] / (0.1 if name == "sgd" else 1e-3))
    return 0.97 - 0.05 * off**2 - 0.5 / (params["epochs"] + 1) - 0.03 * (name == "adamw")


def train(proposal: Proposal) -> Outcome:
    end_s, end = cost_of(proposal.params).train_s, final(proposal.params)
    curve = Curve(np.array([end_s / 2, end_s]), np.array([end - 0.02, end]))
    return Outcome(Status.REACHED if end >= TARGET else Status.MISSED, end_s, curve)


def ask(policy: TimeToTarget) -> Proposal:
    proposal = policy.ask()
    assert proposal is not None
    return proposal


def run(policy: TimeToTarget, num_trials: int) -> list[tuple[Proposal, Outcome]]:
    log = []
    for _ in range(num_trials):
        proposal = ask(policy)
        log.append((proposal, train(proposal)))
        policy.finish(proposal.trial_id, log[-1][1])
    return log


def reach(policy: TimeToTarget, *, train_s: float) -> Proposal:
    proposal = ask(policy)
    curve = Curve(np.array([train_s]), np.array([0.95]))
    policy.finish(proposal.trial_id, Outcome(Status.REACHED, train_s, curve))
    return proposal


def test_what_could_not_beat_the_leader_is_not_proposed() -> None:
    policy = make_policy()
    reach(policy, train_s=11.0)
    costs = [cost_of(ask(policy).params).train_s for _ in range(30)]
    assert max(costs) < 11.0


def test_search_comes_near_the_known_optimum() -> None:
    policy = make_policy()
    run(policy, 60)
    # At the best rate the target needs 0.5 / (epochs + 1) <= 0.07: 7 epochs, 14 s.
    assert policy.leader is not None
    assert policy.leader.time_to_target_s == 14.0


def test_rung_stops_what_promises_less_than_most_did_by_then() -> None:
    parts = Parts(audit_share=0.0)
    policy = make_policy(
        target=SearchTarget(TARGET, "anytime", 81.0), parts=parts, cost_of=lambda params: Cost(81.0)
    )
    better = [ask(policy) for _ in range(3)]
    worse = ask(policy)
    for proposal in better:
        assert policy.report(proposal.trial_id, train_s=1.0, step=1, metric=0.1) is None
    for train_s in (1.5, 3.5):
        for proposal in better:
            policy.report(proposal.trial_id, train_s=train_s, step=2, metric=0.2 * train_s)
    policy.report(worse.trial_id, train_s=1.0, step=1, metric=0.1)
    reason = policy.report(worse.trial_id, train_s=3.5, step=2, metric=0.1)
    assert reason is not None
    assert (reason.figures["ahead"], reason.figures["num"]) == (3, 3)


def test_before_a_leader_runs_are_ranked_at_equal_shares_of_their_schedules() -> None:
    policy = make_policy(
        target=SearchTarget(TARGET, "anytime", 810.0),
        parts=Parts(audit_share=0.0),
        points=[{"epochs": epochs} for epochs in (40, 4, 4, 4)],
        cost_of=lambda params: Cost(20.25 * params["epochs"], round(100 * params["epochs"])),
    )
    slow, *quick = [ask(policy) for _ in range(4)]
    for share in (0.01, 0.02, 0.05):
        for proposal in quick:
            train_s, step = 81.0 * share, round(400 * share)
            policy.report(proposal.trial_id, train_s=train_s, step=step, metric=4 * share)
    # A twentieth of its way at 40 s, better than theirs; at 4 s it had done a two hundredth.
    policy.report(slow.trial_id, train_s=4.0, step=20, metric=0.01)
    assert policy.report(slow.trial_id, train_s=40.5, step=200, metric=0.5) is None


def test_audited_trials_run_on_and_are_about_one_in_twenty() -> None:
    policy = make_policy()
    trials = [ask(policy).trial_id for _ in range(400)]
    running = policy._history.running
    audited = sum(policy._stopping._is_audited(running[trial_id]) for trial_id in trials)
    assert 8 <= audited <= 36  # A binomial's mean is 20, its deviation 4.4.


def test_clock_that_was_told_anew_does_not_run_backwards() -> None:
    policy = make_policy()
    trial_id = ask(policy).trial_id
    for step, train_s in enumerate((2.0, 4.0, 1.5, 3.0), start=1):
        policy.report(trial_id, train_s=train_s, step=step, metric=0.1)
    assert policy._history.running[trial_id].clock == [1.5, 1.5, 1.5, 3.0]


def test_out_of_memory_teaches_what_does_not_fit() -> None:
    def memory(proposal: Proposal) -> Outcome:
        large = proposal.params["epochs"] > 12  # Stands for whatever needs memory.
        return Outcome(Status.OOM, 0.0) if large else train(proposal)

    policy = make_policy()
    late = []
    for number in range(50):
        proposal = ask(policy)
        policy.finish(proposal.trial_id, memory(proposal))
        late += [proposal] if number >= 25 and proposal.reason.kind == "gain" else []
    assert sum(proposal.params["epochs"] > 12 for proposal in late) <= len(late) / 5


def test_diverged_trial_is_learnt_from_and_never_leads() -> None:
    policy = make_policy()
    for _ in range(20):
        proposal = ask(policy)
        curve = Curve(np.array([1.0, 2.0]), np.array([0.3, math.nan]))
        policy.finish(proposal.trial_id, Outcome(Status.DIVERGED, 2.0, curve))
    assert policy.leader is None


def test_given_points_come_first_and_whole_ones_unchanged() -> None:
    point = {"optimizer": "sgd", "optimizer.sgd.lr": 0.123456789, "epochs": 7}
    policy = make_policy(points=[point, {"epochs": 3}])
    first, second = ask(policy), ask(policy)
    assert first.params == point
    assert second.params["epochs"] == 3
    SPACE.build(second.params)


def test_earlier_trials_teach_but_never_lead() -> None:
    prior_trials = [
        PriorTrial(proposal.params, outcome, same_times=True)
        for proposal, outcome in run(make_policy(), 40)
    ]
    policy = make_policy(seed=5, prior_trials=prior_trials)
    assert policy.leader is None
    best = min(
        (t for t in prior_trials if t.outcome.status == Status.REACHED),
        key=lambda t: t.outcome.train_s,
    )
    assert ask(policy).params == best.params
    run(policy, 14)
    assert policy.leader is not None
    assert policy.leader.time_to_target_s <= 16.0


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "grid"])
def test_each_sampler_proposes_from_the_space_and_learns(sampler: str) -> None:
    policy = make_policy(sampler=sampler)
    for number in range(14):
        proposal = ask(policy)
        SPACE.build(proposal.params)
        is_own = str(proposal.reason) == f"{sampler}: the sampler's proposal"
        assert is_own == (sampler != "gain"), proposal.reason
        status = (Status.REACHED, Status.MISSED, Status.OOM)[number % 3]
        # So long that none is refused for its cost.
        took_s = 1000.0 + number
        policy.finish(
            proposal.trial_id, Outcome(status, took_s, Curve(np.array([took_s]), np.array([0.8])))
        )
    assert policy.leader == Leader("t0000", 1000.0)


@pytest.mark.parametrize("sampler", ["grid", "gain", "tpe"])
def test_finite_space_is_tried_whole_and_without_repeats(sampler: str) -> None:
    space = SearchSpace.from_tree({"a": {"choices": [1, 2]}, "b": {"low": 0, "high": 2}})
    policy = make_policy(space=space, sampler=sampler, cost_of=lambda params: Cost(1.0))
    seen = []
    while (proposal := policy.ask()) is not None:
        seen.append(tuple(proposal.params.values()))
        curve = Curve(np.array([1.0]), np.array([0.5]))
        policy.finish(proposal.trial_id, Outcome(Status.MISSED, 1.0, curve))
    assert sorted(seen) == [(a, b) for a in (1, 2) for b in (0, 1, 2)]


@pytest.mark.parametrize("mode", ["fixed_length", "anytime"])
def test_space_without_parameters_has_one_trial(mode: str) -> None:
    space = SearchSpace.from_tree({"epochs": 3})
    policy = make_policy(space=space, target=SearchTarget(TARGET, mode, 100.0))
    assert ask(policy).params == {}
    assert policy.ask() is None


def test_bound_screens_and_guess_ranks() -> None:
    """Screening by a guess could lose a winner; ranking by a bound would favour the unknown."""

    def bound_and_guess(params: Any) -> Cost:
        return Cost(8.0, guess_s=20.0 if params["optimizer"] == "sgd" else 8.0)

    policy = make_policy(cost_of=bound_and_guess)
    reach(policy, train_s=11.0)
    assert policy._allowed({"optimizer": "sgd"}) == 20.0
    assert policy._allowed({"optimizer": "adamw"}) == 8.0
    starts = [ask(policy) for _ in range(11)]
    assert sum(proposal.params["optimizer"] == "adamw" for proposal in starts) >= 8


def test_model_takes_what_a_finished_run_took_instead_of_what_was_guessed() -> None:
    policy = make_policy(cost_of=lambda params: Cost(5.0, guess_s=7.0))
    first, second = ask(policy), ask(policy)
    policy.finish(first.trial_id, Outcome(Status.OOM, 0.0))
    curve = Curve(np.array([4.0]), np.array([0.5]))
    policy.finish(second.trial_id, Outcome(Status.CAPPED, 4.0, curve, planned_s=9.0))
    evidence = policy._history.evidence()
    assert evidence.costs.tolist() == [7.0, 9.0]


@pytest.mark.parametrize("mode", ["fixed_length", "anytime"])
@pytest.mark.parametrize("limit_s", [100.0, math.inf])
def test_unknown_costs_screen_nothing(mode: str, limit_s: float) -> None:
    policy = make_policy(cost_of=lambda params: None, target=SearchTarget(TARGET, mode, limit_s))
    for _ in range(16):
        stopped = ask(policy)
        policy.report(stopped.trial_id, train_s=0.1, step=1, metric=0.3)
        curve = Curve(np.array([0.1]), np.array([0.3]))
        policy.finish(stopped.trial_id, Outcome(Status.CAPPED, 0.1, curve))
    reach(policy, train_s=0.5)
    run(policy, 20)


def test_unfinished_trials_of_a_ledger_are_proposed_again_under_their_ids() -> None:
    first = make_policy()
    log = run(first, 3)
    unfinished = ask(first)
    second = make_policy()
    second.restore(finished=log, unfinished=[unfinished])
    assert ask(second) == unfinished
    assert ask(second).trial_id == "t0004"


def test_two_drivers_on_one_storage_learn_from_each_other(tmp_path: Path) -> None:
    shared = {"storage": str(tmp_path / "journal.log"), "study_name": "both"}
    first, second = make_policy(**shared), make_policy(seed=1, **shared)
    run(first, 6)
    run(second, 1)
    assert len(second._history.ended.trials) == 7
    assert second.leader is None or second.leader.trial_id == "t0000"
