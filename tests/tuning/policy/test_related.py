"""What studies of other tasks suggest, on trainings whose best rate is known."""

import math
from typing import Any

import numpy as np
import pytest

from tune_speed.core.records import Status
from tune_speed.core.words import ProposalKind
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.base import Cost, Outcome, PriorTrial, Problem, Proposal, SearchTarget
from tune_speed.tuning.policy.curve import Curve
from tune_speed.tuning.policy.encoding import Encoder
from tune_speed.tuning.policy.related import FEW, LEAST, MOST_OF_STUDY, Prior, Related
from tune_speed.tuning.policy.time_to_target import TimeToTarget
from tune_speed.tuning.policy.trials import Trial

SPACE = SearchSpace.from_tree(
    {"lr": {"low": 0.001, "high": 1.0, "log": True}, "epochs": {"low": 1, "high": 20}}
)
ENCODER = Encoder(SPACE)
RATES = np.geomspace(0.001, 1.0, 13).tolist()


def outcome(lr: float, epochs: int, *, best_lr: float, target: float = 0.9) -> Outcome:
    """Returns a run that ends at 1 less 1/(2 epochs) and a tenth for each factor of ten of lr."""
    end = 1 - 0.5 / epochs - 0.1 * abs(math.log10(lr / best_lr))
    status = Status.REACHED if end >= target else Status.MISSED
    return Outcome(status, float(epochs), Curve(np.array([float(epochs)]), np.array([end])))


def study(name: str, *, best_lr: float) -> list[PriorTrial]:
    configurations = [{"lr": lr, "epochs": epochs} for lr in RATES for epochs in (6, 18)]
    return [PriorTrial(c, outcome(**c, best_lr=best_lr), False, name) for c in configurations]


def ended(rates: list[float], *, best_lr: float) -> list[Trial]:
    trials = []
    for number, lr in enumerate(rates):
        params = {"lr": lr, "epochs": 10}
        trial = Trial(number, Proposal(f"t{number:04d}", params), ENCODER.units(params), None)
        trial.outcome = outcome(lr, 10, best_lr=best_lr)
        trials.append(trial)
    return trials


def related(*studies: list[PriorTrial]) -> Related:
    return Related([trial for own in studies for trial in own], ENCODER, by_time=False)


def test_first_come_the_fastest_recipe_that_met_the_target_and_the_one_that_ended_best() -> None:
    found, tried = related(study("a", best_lr=0.0316)), list[dict[str, Any]]()
    while choice := found.choice([], lambda params: params not in tried):
        tried.append(choice[0])
    assert tried[0] == {"lr": pytest.approx(0.0316, rel=0.01), "epochs": 6}
    assert tried[1] == {"lr": pytest.approx(0.0316, rel=0.01), "epochs": 18}
    assert len(tried) == MOST_OF_STUDY


def test_studies_take_turns_until_it_is_known_which_of_them_rank_alike() -> None:
    found = related(study("alike", best_lr=0.03), study("unlike", best_lr=1.0))
    tried, order = list[dict[str, Any]](), []
    for _ in range(4):
        choice = found.choice([], lambda params: params not in tried)
        assert choice is not None
        tried.append(choice[0])
        order.append(choice[1].figures["study"])
    assert sorted(order[:2]) == sorted(order[2:]) == ["alike", "unlike"]
    own = ended([0.001, 0.01, 0.03, 0.04], best_lr=0.01)
    choice = found.choice(own, lambda params: True)
    assert choice is not None and choice[1].kind is ProposalKind.RELATED
    assert (choice[1].figures["study"], choice[1].figures["num"]) == ("alike", FEW)


def test_agreement_is_the_rank_correlation_with_what_the_study_lets_expect() -> None:
    own = ended([0.0012, 0.01, 0.05, 0.3, 0.9], best_lr=0.0011)
    same, opposite = related(study("a", best_lr=0.001), study("b", best_lr=1.0)).agreements(own)
    assert same.value == pytest.approx(1.0) and opposite.value == pytest.approx(-1.0)


def test_a_study_that_ranks_otherwise_is_asked_no_more() -> None:
    found = related(study("opposite", best_lr=1.0))
    own = ended([0.001, 0.01, 0.05, 0.3], best_lr=0.001)
    assert found.agreements(own)[0].value < LEAST
    assert found.choice(own, lambda params: True) is None
    assert found.choice(own[: FEW - 1], lambda params: True) is not None


def test_a_study_whose_trials_were_all_stopped_says_nothing() -> None:
    stopped = [
        trial._replace(outcome=trial.outcome._replace(status=Status.CAPPED))
        for trial in study("a", best_lr=0.03)
    ]
    found = related(stopped)
    assert found.agreements(ended([0.001, 0.01, 0.05, 0.3], best_lr=0.01)) == []
    assert found.choice([], lambda params: True) is None


def test_a_search_begins_with_three_of_four_recipes_of_related_studies() -> None:
    target = SearchTarget(0.9, "fixed_length", math.inf)
    problem = Problem(SPACE, target, lambda p: Cost(float(p["epochs"])), seed=0)
    policy = TimeToTarget(problem, prior_trials=study("a", best_lr=0.03))
    first = [policy.ask() for _ in range(4)]
    kinds = [each.reason.kind for each in first if each is not None]
    assert kinds == [ProposalKind.RELATED] * 3 + [ProposalKind.START]
    assert policy.leader is None, "another task's trials never lead"


def test_a_fast_recipe_that_was_met_once_by_luck_comes_after_one_that_holds() -> None:
    """One hit of four runs of 6 s comes to 20 s, three of three runs of 9 s to 10.3 s."""
    fast, sure = {"lr": 0.1, "epochs": 6}, {"lr": 0.1, "epochs": 9}
    hit, miss = (outcome(0.03, 6, best_lr=lr, target=t) for lr, t in ((0.03, 0.9), (0.03, 0.99)))
    runs = [PriorTrial(fast, hit, True), *[PriorTrial(fast, miss, True)] * 3]
    runs += [PriorTrial(sure, hit._replace(train_s=9.0), True)] * 3
    assert Prior(runs, ENCODER, by_time=False).best[0] == sure
