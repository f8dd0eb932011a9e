import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from tune_speed.core.records import Status
from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.base import Outcome, Problem, SearchTarget
from tune_speed.tuning.policy.curve import Curve, distance
from tune_speed.tuning.policy.optuna_study import OptunaStudy, Sampling

SPACE = SearchSpace.from_tree(
    {"lr": {"low": 0.01, "high": 1.0, "log": True}, "epochs": {"low": 1, "high": 8}}
)
TARGET = 0.9
PARAMS = {"lr": 0.1, "epochs": 4}


def make_told(sampler: str = "tpe", **changes: Any) -> OptunaStudy:
    target = SearchTarget(TARGET, "fixed_length", 100.0)
    problem = Problem(SPACE, target, lambda params: None, seed=0)
    return OptunaStudy(problem, Sampling(sampler, **changes))


def outcome(status: Status, *, train_s: float = 2.0, end: float = 0.8) -> Outcome:
    return Outcome(status, train_s, Curve(np.array([train_s]), np.array([end])), 0.25)


def tell(told: OptunaStudy, number: int, result: Outcome) -> None:
    told.enter(f"t{number:04d}", PARAMS)
    y = float(distance(result.curve.metric[-1], TARGET)) if len(result.curve.metric) else -4.0
    told.finish(f"t{number:04d}", result, y=y)


def trials(told: OptunaStudy) -> list[optuna.trial.FrozenTrial]:
    return told._study.get_trials(deepcopy=False)


def test_reached_trial_is_told_the_log_of_its_time_and_is_feasible() -> None:
    told = make_told()
    tell(told, 0, outcome(Status.REACHED, train_s=7.0, end=0.95))
    assert trials(told)[0].value == pytest.approx(math.log(7.0))
    assert trials(told)[0].constraints == {"gap": 0.0, "memory": -2.0}
    assert trials(told)[0].params == PARAMS


def test_miss_is_told_how_far_off_it_was_in_units_of_two_points() -> None:
    told = make_told()
    tell(told, 0, outcome(Status.MISSED, end=0.84))
    assert trials(told)[0].constraints["gap"] == pytest.approx(3.0)


def test_miss_after_passing_on_the_way_is_still_infeasible() -> None:
    told = make_told()
    tell(told, 0, outcome(Status.MISSED, end=0.93))
    assert trials(told)[0].constraints["gap"] > 0


def test_out_of_memory_is_an_infeasible_outcome_not_a_failure() -> None:
    told = make_told()
    tell(told, 0, Outcome(Status.OOM, 0.0))
    assert trials(told)[0].state == optuna.trial.TrialState.COMPLETE
    assert trials(told)[0].constraints["memory"] == 1.0
    assert trials(told)[0].value == pytest.approx(math.log(100.0))


@pytest.mark.parametrize("status", list(Status))
def test_only_infrastructure_faults_are_told_as_failures(status: Status) -> None:
    told = make_told()
    tell(told, 0, outcome(status))
    assert trials(told)[0].state.name == ("FAIL" if status == Status.FAILED else "COMPLETE")


def test_sampler_without_constraints_is_told_that_a_miss_is_worse_than_any_time() -> None:
    told = make_told("cmaes")
    tell(told, 0, outcome(Status.REACHED, train_s=99.0, end=0.95))
    tell(told, 1, outcome(Status.MISSED, train_s=1.0, end=0.86))
    tell(told, 2, outcome(Status.MISSED, train_s=1.0, end=0.5))
    expected = [math.log(99.0), math.log(100.0 * 3), math.log(100.0 * 21)]
    assert [trial.value for trial in trials(told)] == pytest.approx(expected)


def test_restored_trial_is_told_as_it_was() -> None:
    first, second = make_told(), make_told()
    result = outcome(Status.MISSED, end=0.87)
    tell(first, 0, result)
    second.restore(PARAMS, result, y=float(distance(0.87, TARGET)))
    (ours,), (theirs,) = trials(first), trials(second)
    assert (ours.params, ours.value, ours.constraints) == (
        theirs.params,
        theirs.value,
        theirs.constraints,
    )


def test_drivers_that_share_a_storage_hear_of_each_other_once(tmp_path: Path) -> None:
    storage = str(tmp_path / "journal.log")
    first = make_told(storage=storage, study_name="shared")
    second = make_told(storage=storage, study_name="shared")
    tell(first, 0, outcome(Status.MISSED, train_s=3.0, end=0.87))
    (heard,) = second.others()
    assert heard.params == PARAMS
    assert heard.outcome.status == Status.MISSED
    assert heard.outcome.curve.metric.tolist() == [0.87]
    assert list(second.others()) == []
    assert list(first.others()) == []


def test_resumed_driver_adds_nothing_twice_to_a_storage(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/optuna.db"
    result = outcome(Status.REACHED, end=0.95)
    tell(make_told(storage=storage, study_name="mine"), 0, result)
    again = make_told(storage=storage, study_name="mine")
    again.restore(PARAMS, result, y=0.1)
    assert len(trials(again)) == 1
    assert list(again.others()) == []
