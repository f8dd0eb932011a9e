import math
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState
from ray.tune.schedulers import AsyncHyperBandScheduler
from ray.tune.search.optuna import OptunaSearch

from tune_speed.core.records import Status
from tune_speed.core.words import ProposalReason
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.baselines.plain import PENALTY_S
from tune_speed.tuning.baselines.ray_tune import Vanilla
from tune_speed.tuning.policy.base import Leader, Outcome, Problem, Proposal, SearchTarget
from tune_speed.tuning.policy.curve import NO_CURVE, Curve

SPACE = SearchSpace.from_tree(
    {
        "lr": {"low": 0.01, "high": 1.0, "log": True},
        "momentum": {"low": 0.0, "high": 0.99},
        "batch_size": {"choices": [32, 64, 128]},
    }
)
FOR_OPTUNA = {
    "lr": FloatDistribution(0.01, 1.0, log=True),
    "momentum": FloatDistribution(0.0, 0.99),
    "batch_size": CategoricalDistribution([32, 64, 128]),
}
SEARCH_TARGET = SearchTarget(value=0.9, mode="fixed_length", max_train_s=100.0)
EVALUATIONS = 20


def problem_of(seed: int, space: SearchSpace = SPACE) -> Problem:
    return Problem(space, SEARCH_TARGET, lambda params: None, seed)


def make_vanilla(seed: int = 0, space: SearchSpace = SPACE) -> Vanilla:
    return Vanilla(problem_of(seed, space))


def curve(*metric: float) -> Curve:
    return Curve(np.arange(1.0, len(metric) + 1), np.array(metric))


def told(policy: Vanilla) -> list[tuple[Any, ...]]:
    return [(t.params, t.value, t.state) for t in policy._searcher._ot_study.trials]


def rungs(scheduler: AsyncHyperBandScheduler) -> dict[int, dict[str, float]]:
    """Returns what ASHA remembers: the metric of each trial at each milestone."""
    (bracket,) = scheduler._brackets
    return {milestone: recorded for milestone, recorded in bracket._rungs if recorded}


class ByHand:
    """Ray's searcher and trial scheduler, called as Tune's controller calls them."""

    def __init__(self, seed: int) -> None:
        self.searcher = OptunaSearch(space=FOR_OPTUNA, metric="time", mode="min", seed=seed)
        self.scheduler = AsyncHyperBandScheduler(
            time_attr="training_iteration", metric="accuracy", mode="max", max_t=10**5
        )

    def start(self, trial_id: str) -> dict[str, Any]:
        self.scheduler.on_trial_add(None, SimpleNamespace(trial_id=trial_id))
        return self.searcher.suggest(trial_id)

    def is_stopped(self, trial_id: str, iteration: int, accuracy: float) -> bool:
        result = {"training_iteration": iteration, "accuracy": accuracy}
        trial = SimpleNamespace(trial_id=trial_id)
        return self.scheduler.on_trial_result(None, trial, result) == "STOP"

    def end(self, trial_id: str, time_s: float, last: tuple[int, float] | None) -> None:
        self.searcher.on_trial_complete(trial_id, {"time": time_s})
        if last is not None:
            result = {"training_iteration": last[0], "accuracy": last[1]}
            trial = SimpleNamespace(trial_id=trial_id)
            self.scheduler.on_trial_complete(None, trial, result)


def accuracy(params: dict[str, Any], iteration: int) -> float:
    best = 0.97 - 0.1 * abs(math.log10(params["lr"] / 0.1)) - 0.05 * params["momentum"]
    noise = random.Random(f"{params['lr']}{iteration}").gauss(0, 0.02)
    return best * (1 - math.exp(-iteration / 5)) + noise


def search_both(policy: Vanilla, by_hand: ByHand, *, num: int, running: int) -> list[str]:
    """Runs trials side by side, in a random order; returns those that were stopped.

    Asserts that proposals and stops agree.
    """
    chooser, open_trials, stopped = random.Random(1), {}, []
    started = 0
    while started < num or open_trials:
        if started < num and len(open_trials) < running:
            proposal = policy.ask()
            assert by_hand.start(proposal.trial_id) == proposal.params
            open_trials[proposal.trial_id], started = (proposal, []), started + 1
            continue
        trial_id = chooser.choice(sorted(open_trials))
        proposal, seen = open_trials[trial_id]
        seen.append(accuracy(proposal.params, len(seen) + 1))
        step(policy, by_hand, proposal, seen, stopped)
        if len(seen) == EVALUATIONS or trial_id in stopped:
            del open_trials[trial_id]
    return stopped


def step(
    policy: Vanilla, by_hand: ByHand, proposal: Proposal, seen: list[float], stopped: list[str]
) -> None:
    trial_id, num = proposal.trial_id, len(seen)
    if num == EVALUATIONS:
        is_reached = seen[-1] >= 0.8
        status = Status.REACHED if is_reached else Status.MISSED
        policy.finish(trial_id, Outcome(status, float(num), curve(*seen)))
        by_hand.end(trial_id, float(num) if is_reached else 1e6, (num, seen[-1]))
        return
    reason = policy.report(trial_id, train_s=float(num), step=num, metric=seen[-1])
    assert (reason is not None) == by_hand.is_stopped(trial_id, num, seen[-1])
    if reason is not None:
        stopped.append(trial_id)
        policy.finish(trial_id, Outcome(Status.CAPPED, float(num), curve(*seen)))
        by_hand.end(trial_id, 1e6, None)


@pytest.mark.parametrize("running", [1, 4])
def test_proposals_and_stops_are_those_of_rays_own_objects(running: int) -> None:
    policy, by_hand = make_vanilla(seed=5), ByHand(seed=5)
    stopped = search_both(policy, by_hand, num=40, running=running)
    assert 10 < len(stopped) < 40
    assert rungs(policy._scheduler) == rungs(by_hand.scheduler)
    assert policy.leader is not None


@pytest.mark.parametrize(
    ("status", "told_s"),
    [
        *((status, PENALTY_S) for status in (Status.MISSED, Status.CAPPED, Status.DIVERGED)),
        *((status, None) for status in (Status.FAILED, Status.OOM)),
        (Status.REACHED, 3.5),
    ],
)
def test_time_a_penalty_or_a_failure_is_told(status: Status, told_s: float | None) -> None:
    policy = make_vanilla()
    seen = NO_CURVE if told_s is None else curve(0.1)
    policy.finish(policy.ask().trial_id, Outcome(status, 3.5, seen))
    state = TrialState.FAIL if told_s is None else TrialState.COMPLETE
    assert told(policy)[0][1:] == (told_s, state)
    assert policy.leader == (Leader("t0000", 3.5) if status == Status.REACHED else None)
    assert told_s is not None or rungs(policy._scheduler) == {}


class Logged(Vanilla):
    def finish(self, trial_id: str, outcome: Outcome) -> None:
        self.__dict__.setdefault("ends", {})[trial_id] = outcome
        super().finish(trial_id, outcome)

    def ask(self) -> Proposal:
        proposal = super().ask()
        self.__dict__.setdefault("asked", {})[proposal.trial_id] = proposal
        return proposal


@pytest.mark.parametrize("running", [1, 4])
def test_restored_policy_remembers_what_searcher_and_scheduler_were_told(running: int) -> None:
    first, again = Logged(problem_of(5)), make_vanilla(seed=5)
    search_both(first, ByHand(seed=5), num=30, running=running)
    log = [(first.asked[trial_id], outcome) for trial_id, outcome in first.ends.items()]
    again.restore(finished=log, unfinished=[])
    assert again.leader == first.leader
    assert rungs(again._scheduler) == rungs(first._scheduler)
    by_lr = sorted(told(first), key=lambda trial: trial[0]["lr"])
    assert sorted(told(again), key=lambda trial: trial[0]["lr"]) == by_lr
    assert again.ask().trial_id == "t0030"


def test_unfinished_trials_are_proposed_again_under_their_ids() -> None:
    policy = make_vanilla()
    lost = Proposal("t0003", {"lr": 0.5, "momentum": 0.5, "batch_size": 64}, ProposalReason())
    policy.restore(finished=[], unfinished=[lost])
    assert policy.ask() == lost
    assert policy.report("t0003", train_s=1.0, step=1, metric=0.3) is None
    policy.finish("t0003", Outcome(Status.REACHED, 2.0, curve(0.3, 0.95)))
    assert told(policy)[0] == (lost.params, 2.0, TrialState.COMPLETE)
    assert policy.ask().trial_id == "t0004"


def test_trial_taken_back_is_proposed_again_and_leaves_its_rungs_open() -> None:
    policy = make_vanilla()
    proposal = policy.ask()
    policy.report(proposal.trial_id, train_s=1.0, step=1, metric=0.3)
    policy.retry(proposal)
    assert policy.ask() == proposal
    assert policy.report(proposal.trial_id, train_s=1.0, step=1, metric=0.3) is None
    policy.finish(proposal.trial_id, Outcome(Status.REACHED, 2.0, curve(0.3, 0.95)))
    assert [trial[2] for trial in told(policy)] == [TrialState.FAIL, TrialState.COMPLETE]


def test_next_new_trial_after_one_taken_back_is_a_new_one() -> None:
    policy = make_vanilla()
    proposal = policy.ask()
    policy.retry(proposal)
    assert policy.ask() == proposal
    assert policy.ask().params != proposal.params


def test_first_trial_that_diverges_at_once_neither_warns_nor_stops_the_next() -> None:
    policy = make_vanilla()
    policy.finish(policy.ask().trial_id, Outcome(Status.DIVERGED, 1.0, curve(math.nan)))
    assert policy.report(policy.ask().trial_id, train_s=1.0, step=1, metric=0.0) is None


def test_name_with_a_slash_is_a_name() -> None:
    space = SearchSpace.from_tree({"hub/net": {"lr": {"low": 0.0, "high": 1.0}}})
    assert list(make_vanilla(space=space).ask().params) == ["hub/net.lr"]


def test_conditional_parameters_appear_with_their_choice() -> None:
    tree = {"optimizer": {"choices": {"sgd": {"lr": {"low": 0.1, "high": 1.0}}, "adam": None}}}
    policy = make_vanilla(space=SearchSpace.from_tree(tree))
    proposals = [policy.ask().params for _ in range(20)]
    assert {("optimizer.sgd.lr" in p) == (p["optimizer"] == "sgd") for p in proposals} == {True}
    assert {p["optimizer"] for p in proposals} == {"sgd", "adam"}
