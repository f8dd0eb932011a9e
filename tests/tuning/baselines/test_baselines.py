import math
from functools import partial
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from tune_speed.core.records import Status
from tune_speed.core.words import ProposalReason
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.baselines.plain import PENALTY_S, Plain
from tune_speed.tuning.baselines.ray_tune import Vanilla
from tune_speed.tuning.policy.base import (
    Leader,
    Outcome,
    Problem,
    Proposal,
    SearchTarget,
    better,
    trial_number,
)
from tune_speed.tuning.policy.samplers import make_sampler, quiet_study, suggest

SPACE = SearchSpace.from_tree(
    {
        "lr": {"low": 0.01, "high": 1.0, "log": True},
        "optimizer": {"choices": {"sgd": {"momentum": {"low": 0.0, "high": 0.99}}, "adam": None}},
    }
)
SEARCH_TARGET = SearchTarget(value=0.9, mode="fixed_length", max_train_s=100.0)
SPOILT = [Status.MISSED, Status.CAPPED, Status.DIVERGED, Status.OOM]
every_kind = pytest.mark.parametrize("sampler", ["tpe", "random"])


PROBLEM = Problem(SPACE, SEARCH_TARGET, lambda params: None, seed=0)


def make_plain(sampler: str = "random", *, seed: int = 0) -> Plain:
    return Plain(PROBLEM._replace(seed=seed), sampler=sampler)


def made_up_outcome(params: dict[str, Any], number: int) -> Outcome:
    """Returns every third as missed, and every seventh as failed."""
    status = {0: Status.MISSED, 1: Status.REACHED, 2: Status.REACHED}[number % 3]
    status = Status.FAILED if number % 7 == 5 else status
    return Outcome(status, 10 + 5 * abs(math.log10(params["lr"] / 0.1)))


def values(policy: Plain) -> list[float | None]:
    return [trial.value for trial in policy._study.trials]


@every_kind
def test_proposals_are_those_of_the_bare_sampler_told_the_same(sampler: str) -> None:
    policy = make_plain(sampler, seed=4)
    study = quiet_study(make_sampler(sampler, space=SPACE, seed=4))
    for number in range(30):
        proposal, trial = policy.ask(), study.ask()
        assert proposal.params == suggest(SPACE, trial)
        assert proposal.trial_id == f"t{number:04d}"
        outcome = made_up_outcome(proposal.params, number)
        policy.finish(proposal.trial_id, outcome)
        if outcome.status == Status.FAILED:
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, outcome.train_s if outcome.status == Status.REACHED else 1e6)


@pytest.mark.parametrize("status", SPOILT)
def test_miss_is_told_as_a_time_longer_than_any_run(status: Status) -> None:
    policy = make_plain()
    policy.finish(policy.ask().trial_id, Outcome(status, 3.0))
    assert values(policy) == [PENALTY_S]
    assert policy.leader is None
    assert SEARCH_TARGET.max_train_s < PENALTY_S


def test_failed_trial_is_told_as_no_value_at_all() -> None:
    policy = make_plain()
    policy.finish(policy.ask().trial_id, Outcome(Status.FAILED, 3.0))
    assert [trial.state for trial in policy._study.trials] == [TrialState.FAIL]


@every_kind
def test_restored_policy_knows_what_the_first_one_knew(sampler: str) -> None:
    first, again = (make_plain(sampler) for _ in range(2))
    log = []
    for number in range(12):
        proposal = first.ask()
        log.append((proposal, made_up_outcome(proposal.params, number)))
        first.finish(proposal.trial_id, log[-1][1])
    again.restore(finished=log, unfinished=[])
    assert again.leader == first.leader is not None
    told = [[(t.params, t.value, t.state) for t in p._study.trials] for p in (first, again)]
    assert told[0] == told[1]
    assert again.ask().trial_id == "t0012"


@pytest.mark.parametrize("make", [Vanilla, Plain, partial(Plain, sampler="tpe")])
def test_resumed_search_draws_other_configurations_than_before(make: Any) -> None:
    first, again = make(PROBLEM), make(PROBLEM)
    before = [first.ask() for _ in range(6)]
    done = [(proposal, made_up_outcome(proposal.params, 1)) for proposal in before[:3]]
    again.restore(finished=done, unfinished=before[3:])
    after = [again.ask().params for _ in range(9)]
    assert after[:3] == [proposal.params for proposal in before[3:]]
    new = after[3:]
    assert len(new) == 6 and not [params for params in new if params in [p.params for p in before]]


def test_unfinished_trials_are_proposed_again_under_their_ids() -> None:
    policy = make_plain()
    lost = [Proposal("t0003", {"lr": 0.5, "optimizer": "adam"}, ProposalReason())]
    policy.restore(finished=[], unfinished=lost)
    assert policy.ask() == lost[0]
    assert policy.ask().trial_id == "t0004"
    policy.finish("t0003", Outcome(Status.REACHED, 7.0))
    assert (policy._study.trials[0].params, values(policy)[0]) == (lost[0].params, 7.0)


def test_trial_taken_back_is_proposed_again_and_told_once() -> None:
    policy = make_plain()
    proposal = policy.ask()
    policy.retry(proposal)
    assert policy.ask() == proposal
    policy.finish(proposal.trial_id, Outcome(Status.REACHED, 2.0))
    assert [t.state for t in policy._study.trials] == [TrialState.FAIL, TrialState.COMPLETE]


def test_withdrawn_trial_is_not_proposed_again() -> None:
    policy = make_plain()
    policy.withdraw(policy.ask().trial_id)
    assert policy.ask().trial_id == "t0001"


outcomes = st.builds(
    Outcome, st.sampled_from(list(Status)), st.sampled_from([1.0, 2.0, 3.0]) | st.floats(0.1, 9)
)


@settings(max_examples=50)
@given(outcomes=st.lists(outcomes, max_size=12), order=st.randoms(use_true_random=False))
def test_leader_is_the_shortest_time_and_of_equals_the_first_number(
    outcomes: list[Outcome], order: Any
) -> None:
    named = [(f"t{9996 + i:04d}", outcome) for i, outcome in enumerate(outcomes)]
    times = [(o.train_s, i) for i, (_, o) in enumerate(named) if o.status == Status.REACHED]
    order.shuffle(named)
    leader = None
    for trial_id, outcome in named:
        leader = better(leader, trial_id, outcome)
    expected = min(times, default=None)
    assert leader == (expected and Leader(f"t{9996 + expected[1]:04d}", expected[0]))


def test_trial_number_is_read_from_its_id() -> None:
    assert [trial_number(trial_id) for trial_id in ("t0007", "t12345")] == [7, 12345]


def test_random_policy_draws_evenly_over_the_logarithm() -> None:
    policy = make_plain()
    draws = np.array([policy.ask().params["lr"] for _ in range(600)])
    assert abs(np.mean(draws < 0.1) - 0.5) < 4 * math.sqrt(0.25 / 600)


@pytest.mark.parametrize("make", [Vanilla, partial(Plain, sampler="tpe")])
def test_nothing_is_logged(capfd: pytest.CaptureFixture[str], make: Any) -> None:
    optuna.logging.set_verbosity(optuna.logging.INFO)
    policy = make(PROBLEM)
    policy.finish(policy.ask().trial_id, Outcome(Status.REACHED, 1.0))
    assert capfd.readouterr() == ("", "")
