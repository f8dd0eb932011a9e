"""One search for several targets: each is told what it would have seen in a search of its own."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tune_speed.core.records import Status
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policies import make_policy
from tune_speed.tuning.policy.base import Cost, Outcome, Proposal, SearchTarget
from tune_speed.tuning.policy.curve import Curve
from tune_speed.tuning.policy.settings import Parts
from tune_speed.tuning.policy.several_targets import SeveralTargets
from tune_speed.tuning.policy.time_to_target import TimeToTarget

SPACE = SearchSpace.from_tree({"x": {"low": 0.0, "high": 1.0}, "epochs": {"low": 1, "high": 40}})


def cost_of(params: Mapping[str, Any]) -> Cost:
    return Cost(1.0 * params["epochs"], num_steps=params["epochs"])


def policy_of(mode: Any = "fixed_length", weights: Any = (0.5, 0.5), **parts: Any) -> Any:
    return make_policy(
        "time_to_target",
        space=SPACE,
        target=SearchTarget(0.9, mode, 100.0, (0.8,), weights),
        cost_of=cost_of,
        seed=0,
        parts=Parts(audit_share=0.0, **parts),
    )


def ended(number: int, epochs: int, x: float = 0.4) -> tuple[Proposal, Outcome]:
    """Returns a run whose error at the end is 1 / epochs, and larger off x = 0.4."""
    end = 1 - 1 / epochs - abs(x - 0.4)
    clock, metric = np.array([epochs / 2, float(epochs)]), np.array([end - 0.2, end])
    status = Status.REACHED if end >= 0.9 else Status.MISSED
    proposal = Proposal(f"t{number:04d}", {"x": x, "epochs": epochs})
    return proposal, Outcome(status, float(epochs), Curve(clock, metric))


# 0.9 takes 10 epochs, 0.8 takes 5: 12 and 6 are the shortest here that are sure of it.
SEEN = [ended(n, epochs) for n, epochs in enumerate((3, 4, 6, 6, 6, 6, 12, 12, 12, 12, 20, 30))]


def restored(**settings: Any) -> SeveralTargets:
    policy = policy_of(**settings)
    assert isinstance(policy, SeveralTargets)
    policy.restore(finished=SEEN, unfinished=())
    return policy


def test_of_a_tiny_space_the_favourite_of_each_target_has_four_runs() -> None:
    space = SearchSpace.from_tree({"epochs": {"choices": [6, 12]}})
    options = {"space": space, "cost_of": cost_of, "seed": 0, "parts": Parts(audit_share=0.0)}
    target = SearchTarget(0.9, "fixed_length", 100.0, (0.8,), (0.5, 0.5))
    policy: Any = make_policy("time_to_target", target=target, **options)
    ran = []
    while (proposal := policy.ask()) is not None:
        ran.append(proposal.params["epochs"])
        policy.finish(proposal.trial_id, ended(len(ran), ran[-1])[1])
    assert ran.count(6) >= 4 and ran.count(12) >= 4 and len(ran) <= 10
    assert policy.favourites[0].runs >= 4 and policy.lower_favourites[0][0].runs >= 4


def test_one_target_is_searched_as_ever() -> None:
    target = SearchTarget(0.9, "anytime", 100.0)
    alone = make_policy("time_to_target", space=SPACE, target=target, cost_of=cost_of, seed=0)
    assert type(alone) is TimeToTarget


def test_each_target_has_a_recommendation_of_its_own() -> None:
    policy = restored()
    ((lower, *_),) = policy.lower_favourites
    epochs = {proposal.trial_id: proposal.params["epochs"] for proposal, _ in SEEN}
    assert epochs[policy.favourites[0].trial_id] == 12
    assert epochs[lower.trial_id] == 6


def test_a_lower_target_sees_what_a_search_for_it_alone_would_have_seen() -> None:
    alone = make_policy(
        "time_to_target",
        space=SPACE,
        target=SearchTarget(0.8, "fixed_length", 100.0),
        cost_of=cost_of,
        seed=0,
        parts=Parts(audit_share=0.0),
    )
    own = [
        (p, o._replace(status=Status.REACHED if o.curve.metric[-1] >= 0.8 else Status.MISSED))
        for p, o in SEEN
    ]
    alone.restore(finished=own, unfinished=())
    assert restored().lower_favourites == (alone.favourites,)


def test_what_could_lead_at_one_target_alone_is_tried() -> None:
    policy = restored()
    # Longer than the 12 s of the hardest target; longer than the 6 s of the lower one alone.
    assert policy._allowed({"x": 0.41, "epochs": 13}) is None
    assert policy._allowed({"x": 0.41, "epochs": 9}) == 9.0


def test_the_weights_decide_which_target_is_improved() -> None:
    """With nearly all weight on a target, what is tried lies where that one's best does."""

    def lengths(weights: tuple[float, float]) -> list[int]:
        policy = restored(weights=weights, explore_every=0, repeats=False)
        found = [policy.ask() for _ in range(4)]
        return [proposal.params["epochs"] for proposal in found if proposal is not None]

    hard, low = lengths((0.999, 0.001)), lengths((0.001, 0.999))
    assert np.median(hard) > 6 >= np.median(low), (hard, low)


def test_a_run_is_stopped_when_it_can_lead_at_no_target() -> None:
    policy = policy_of(mode="anytime", rungs=False)
    clock, metric = np.array([4.0, 5.0, 12.0, 13.0]), np.array([0.81, 0.82, 0.91, 0.92])
    met = Outcome(Status.REACHED, 12.0, Curve(clock, metric))
    policy.restore(finished=[(Proposal("t0000", {"x": 0.4, "epochs": 13}), met)], unfinished=())
    assert policy.leader.time_to_target_s == 12.0
    assert [each.leader.time_to_target_s for each in policy._lower] == [4.0]
    proposal = policy.ask()
    assert proposal is not None
    trial_id, bests = proposal.trial_id, [policy._history.to_beat_s()]
    bests += [each._history.to_beat_s() for each in policy._lower]
    assert bests[1] < bests[0]
    between, late = sum(bests) / 2, 3 * bests[0]
    assert policy.report(trial_id, train_s=between, step=1, metric=0.5) is None
    reason = policy.report(trial_id, train_s=late, step=2, metric=0.5)
    assert reason is not None and "which is recommended" in reason


def judged_by(
    policy: SeveralTargets, monkeypatch: pytest.MonkeyPatch, top: list[Any], lower: list[Any]
) -> None:
    """Has the rules at each target return these, report by report."""
    answers = [(policy._stopping, iter(top)), (policy._lower[0]._stopping, iter(lower))]
    for rules, said in answers:
        monkeypatch.setattr(rules, "reason", lambda trial, said=said: next(said))


def reported(policy: SeveralTargets, metrics: list[float]) -> list[str | None]:
    proposal = policy.ask()
    assert proposal is not None
    told = [{"train_s": float(i), "step": i, "metric": m} for i, m in enumerate(metrics, start=1)]
    return [policy.report(proposal.trial_id, **each) for each in told]


def test_a_rung_of_one_target_is_not_enough_and_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = policy_of(mode="anytime")
    judged_by(policy, monkeypatch, ["rung", None, None], [None, None, "late"])
    assert reported(policy, [0.5, 0.5, 0.5]) == [None, None, "rung"]


def test_a_target_that_a_run_has_met_does_not_keep_it_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = policy_of(mode="anytime")
    judged_by(policy, monkeypatch, [None, "late", None], [None, None, None])
    # 0.8 holds twice in a row at the third report.
    assert reported(policy, [0.5, 0.81, 0.82]) == [None, None, "late"]


@pytest.mark.parametrize("mode", ["fixed_length", "anytime"])
def test_a_search_that_goes_on_proposes_what_it_would_have_without_the_break(mode: Any) -> None:
    through, log = policy_of(mode), []
    for number in range(16):
        proposal = through.ask()
        assert proposal is not None
        _, outcome = ended(number, proposal.params["epochs"], proposal.params["x"])
        through.finish(proposal.trial_id, outcome)
        log.append((proposal, outcome))
    again = policy_of(mode)
    again.restore(finished=log, unfinished=())
    assert again.ask() == through.ask()
    assert again.lower_favourites == through.lower_favourites


def test_a_run_that_was_taken_back_is_proposed_again() -> None:
    policy = restored()
    proposal = policy.ask()
    assert proposal is not None
    policy.retry(proposal)
    assert policy.ask() == proposal


def test_at_the_end_the_favourites_of_both_targets_are_run_again() -> None:
    policy, runs = policy_of(sure_runs=6), []
    policy.restore(finished=SEEN, unfinished=())
    policy.spent = 0.9
    for _ in range(8):
        proposal = policy.ask()
        assert proposal is not None and proposal.reason.startswith("again: ")
        runs.append(proposal.params["epochs"])
    assert {6, 12} <= set(runs)
    assert all(math.isfinite(each) for each in runs)
