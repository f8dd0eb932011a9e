import json
import math
from typing import Any

import numpy as np
import pytest
from helpers.making import make_evaluation, make_run

from tune_speed.core.records import Evaluation, RunResult, Status, StepTime, TrialRecord
from tune_speed.core.words import Device
from tune_speed.data.datasets.builtin import Digits
from tune_speed.data.datasets.image_folder import ImageFolder
from tune_speed.data.split import SplitConfig
from tune_speed.study.space import SearchSpace
from tune_speed.tracking.reader.tables import TrackedTrial
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import TrialSpec, make_record
from tune_speed.training.workload import Target, Workload
from tune_speed.tuning.driver.prior_trials import (
    NO_CURVE,
    CarriedOver,
    Machine,
    carry_over,
    curve_of,
    outcome_of,
    params_in,
    prior_from_json,
    prior_to_json,
    related_trials,
)
from tune_speed.tuning.policy.base import Outcome

HERE = Machine("H200", "2.15.0")
WORKLOAD = Workload(
    dataset=Digits(), target=Target(value=0.9), split=SplitConfig(train_samples=100)
)
TREE: dict[str, Any] = {
    "model": "resnet20",
    "optimizer": {"sgd": {"lr": {"low": 0.1, "high": 1.0}}},
    "epochs": {"low": 1, "high": 4},
    "batch_size": 50,
}
SPACE = SearchSpace.from_tree(TREE)
PARAMS: dict[str, Any] = {"optimizer.sgd.lr": 0.5, "epochs": 3}


def evaluations(*accuracies: float) -> tuple[Evaluation, ...]:
    """One after each epoch of two steps, that of the untrained model first."""
    found = [
        make_evaluation(step=2 * epoch, train_s=2.0 * epoch, accuracy=accuracy)
        for epoch, accuracy in enumerate([0.1, *accuracies])
    ]
    return tuple(e.model_copy(update={"samples": 100 * i}) for i, e in enumerate(found))


def record(
    *accuracies: float,
    status: Status = Status.REACHED,
    workload: Workload = WORKLOAD,
    data_hash: str = "data",
    space: SearchSpace = SPACE,
    params: dict[str, Any] = PARAMS,
    machine: Machine = HERE,
    **run: Any,
) -> TrialRecord:
    recipe = Recipe.model_validate(space.build(params))
    spec = TrialSpec(
        study="earlier",
        trial_id="t0000",
        params=params,
        recipe=recipe,
        workload=workload,
        workload_hash=workload.identity(data_hash=data_hash),
        space_hash=space.hash,
        seed=0,
    )
    curve = evaluations(*accuracies)
    time_s = curve[-1].train_s if accuracies else 0.0
    made = make_run(status, time_s=time_s or 1.0).model_copy(
        update={
            "evaluations": curve if accuracies else (),
            "steps": curve[-1].step if accuracies else 0,
            "device": Device.model_validate(machine.device),
            **run,
        }
    )
    whole = make_record(spec, recipe, made, started_at="")
    return whole.model_copy(update={"environment": {"torch": machine.torch}})


def carried(found: TrialRecord, workload: Workload = WORKLOAD, **changes: Any) -> CarriedOver:
    settings = {"space": SPACE, "data_hash": "data", "machine": HERE, **changes}
    trials = [TrackedTrial("run", "experiment", found, has_curve=True)]
    return carry_over(trials, read_curves=iter, workload=workload, **settings)


def told(found: TrialRecord) -> Outcome:
    return outcome_of(found, WORKLOAD, num_train=100)


def changed(**fields: Any) -> Workload:
    return WORKLOAD.model_copy(update=fields)


def reasons(found: CarriedOver) -> list[str]:
    assert found.trials == ()
    return list(found.left_out)


def test_curve_leaves_out_the_untrained_model() -> None:
    curve = curve_of(record(0.5, 0.7, 0.95), WORKLOAD)
    assert curve.train_s.tolist() == [2.0, 4.0, 6.0]
    assert curve.metric.tolist() == [0.5, 0.7, 0.95]


def test_curve_is_of_the_target_metric() -> None:
    by_f1 = changed(target=Target(metric="macro_f1", value=0.9))
    assert curve_of(record(0.5, 0.7), by_f1).metric.tolist() == [0.25, 0.35]


def test_diverged_run_ends_in_what_is_no_number() -> None:
    outcome = told(record(0.5, 0.1, status=Status.DIVERGED))
    assert outcome.curve.metric[0] == 0.5
    assert math.isnan(outcome.curve.metric[1])
    assert outcome.best_metric == 0.5


def test_trial_without_memory_has_no_curve() -> None:
    oom = told(record(status=Status.OOM, peak_memory_gib=3.0, memory_limit_gib=2.0))
    assert (len(oom.curve.train_s), oom.memory_ratio) == (0, 1.5)


def test_stopped_run_says_when_it_would_have_ended() -> None:
    assert told(record(0.5, 0.7, status=Status.CAPPED)).planned_s == pytest.approx(6.0)
    assert told(record(status=Status.OOM)).planned_s is None


def test_run_that_was_ended_before_it_trained_says_what_it_would_have_taken() -> None:
    step_time = StepTime(
        key="k", step_s=2.0, low_s=1.9, high_s=2.1, num_steps=9, measured_in="earlier/t0000"
    )
    took = {"step_times": (step_time,), "step_time_ms": 2000.0, "init_s": 1.0}
    assert told(record(status=Status.CAPPED, **took)).planned_s == pytest.approx(1 + 6 * 2.0)


def test_same_device_carries_times_and_memory_over() -> None:
    (trial,) = carried(record(0.5, 0.7, 0.95)).trials
    assert (trial.params, trial.same_times) == (PARAMS, True)
    assert (trial.outcome.status, trial.outcome.train_s) == (Status.REACHED, 6.0)
    assert trial.outcome.memory_ratio == 0.5


@pytest.mark.parametrize("there", [Machine("cpu", "2.15.0"), Machine("H200", "2.14.0")])
def test_other_device_or_torch_carries_the_metric_over_only(there: Machine) -> None:
    (trial,) = carried(record(0.5, 0.7, 0.95, machine=there)).trials
    assert not trial.same_times
    assert trial.outcome.memory_ratio is None
    assert trial.outcome.curve.metric.tolist() == [0.5, 0.7, 0.95]


@pytest.mark.parametrize(("target", "status"), [(0.8, Status.REACHED), (0.99, Status.MISSED)])
def test_whole_run_is_judged_by_the_new_target(target: float, status: Status) -> None:
    (trial,) = carried(record(0.5, 0.7, 0.95), changed(target=Target(value=target))).trials
    assert trial.outcome.status == status


def test_run_that_was_stopped_is_no_miss() -> None:
    stopped = record(0.5, 0.95, status=Status.CAPPED)
    (trial,) = carried(stopped, changed(target=Target(value=0.94))).trials
    assert (trial.outcome.status, trial.outcome.train_s) == (Status.CAPPED, 4.0)


def test_anytime_study_finds_the_first_of_two_passes_of_a_whole_run() -> None:
    (trial,) = carried(record(0.91, 0.92, 0.95), changed(mode="anytime")).trials
    assert (trial.outcome.status, trial.outcome.train_s) == (Status.REACHED, 2.0)


def test_anytime_run_that_ended_at_its_target_says_nothing_of_its_end() -> None:
    theirs = record(0.92, 0.93, workload=changed(mode="anytime"), time_to_target_s=2.0)
    (trial,) = carried(theirs).trials
    assert trial.outcome.status == Status.CAPPED


def test_run_past_the_new_time_limit_has_not_met_the_target() -> None:
    (trial,) = carried(record(0.5, 0.7, 0.95), changed(max_train_s=5.0)).trials
    assert trial.outcome.status == Status.CAPPED


GOAL = {"metric": "accuracy", "value": 0.001}


@pytest.mark.parametrize(
    ("earlier", "within_s", "status"),
    [
        (WORKLOAD, 6.0, Status.REACHED),
        (WORKLOAD, 5.0, Status.CAPPED),
        (changed(target=Target(**GOAL, within_s=60.0), max_train_s=60.0), 6.0, Status.REACHED),
    ],
)
def test_targets_and_goals_are_learned(earlier: Workload, within_s: float, status: Status) -> None:
    """By its own time: a run that took 6 s ended in 6 s and not in 5, whatever it was to meet."""
    own = changed(target=Target(**GOAL, within_s=within_s), max_train_s=within_s)
    (trial,) = carried(record(0.5, 0.7, 0.8, status=Status.MISSED, workload=earlier), own).trials
    assert (trial.outcome.status, trial.outcome.train_s) == (status, 6.0)
    assert trial.outcome.curve.metric.tolist() == [0.5, 0.7, 0.8]


def test_other_data_are_left_out_though_every_field_is_equal() -> None:
    assert reasons(carried(record(0.5, data_hash="other"))) == [
        "other data, split or evaluation grid"
    ]


@pytest.mark.parametrize(
    "fields", [{"split": SplitConfig(train_samples=99)}, {"eval_every_samples": 50}]
)
def test_other_split_or_grid_is_left_out(fields: dict[str, Any]) -> None:
    theirs = record(0.5, workload=changed(**fields))
    assert reasons(carried(theirs)) == ["other data, split or evaluation grid"]


def test_parameters_out_of_this_space_are_left_out() -> None:
    narrow = SearchSpace.from_tree({**SPACE.tree, "epochs": {"low": 1, "high": 2}})
    assert reasons(carried(record(0.5), space=narrow)) == ["parameters that do not fit this space"]


def test_other_fixed_field_is_another_recipe() -> None:
    clipped = SearchSpace.from_tree({**SPACE.tree, "clip_norm": 1.0})
    assert reasons(carried(record(0.5), space=clipped)) == ["a recipe whose fixed fields differ"]


def test_what_was_measured_before_training_is_the_same_recipe() -> None:
    """A record has what `auto` was settled as: in the recipe, or further down."""
    fields = {
        "compile": "auto",
        "cuda_graph": "auto",
        "loader": {"dataloader": {"workers": "auto"}},
    }
    auto = SearchSpace.from_tree({**TREE, **fields})
    settled = {"compile": True, "cuda_graph": True, "loader": {"dataloader": {"workers": 3}}}
    theirs = record(0.95, space=SearchSpace.from_tree({**TREE, **settled}))
    assert len(carried(theirs, space=auto).trials) == 1
    other = record(0.95, space=SearchSpace.from_tree({**TREE, **settled, "clip_norm": 1.0}))
    assert not carried(other, space=auto).trials


def test_micro_batch_halved_for_want_of_memory_is_the_same_recipe() -> None:
    found = record(0.5)
    halved = Recipe.model_validate(found.recipe).with_micro_batch(25).model_dump(mode="json")
    assert len(carried(found.model_copy(update={"recipe": halved})).trials) == 1


def test_error_and_another_devices_memory_say_nothing() -> None:
    assert reasons(carried(record(status=Status.FAILED)))[0].startswith("an error")
    oom = record(status=Status.OOM, machine=Machine("small", "2.15.0"))
    assert reasons(carried(oom)) == ["no memory left, on another device"]
    assert carried(record(status=Status.OOM)).trials[0].outcome.status == Status.OOM


def test_curves_are_read_of_trials_that_carry_over_only() -> None:
    asked: list[TrackedTrial] = []
    bare = [TrackedTrial(str(i), "", record(0.5, data_hash=d)) for i, d in enumerate(("data", "x"))]
    settings = {"space": SPACE, "workload": WORKLOAD, "data_hash": "data", "machine": HERE}
    found = carry_over(bare, read_curves=lambda each: asked.extend(each) or each, **settings)
    assert [each.run_id for each in asked] == ["0"]
    assert sorted(found.left_out.values()) == [1, 1] and NO_CURVE in found.left_out


def test_record_of_another_version_is_left_out_not_an_error() -> None:
    old = record(0.5).model_copy(update={"workload": {"dataset": "gone"}})
    assert reasons(carried(old)) == ["other data, split or evaluation grid"]


def test_earlier_trial_reads_back_from_json() -> None:
    (trial,) = carried(record(0.5, 0.7, status=Status.DIVERGED)).trials
    again = prior_from_json(prior_to_json(trial))
    assert (again.params, again.same_times) == (trial.params, trial.same_times)
    assert again.outcome[:2] == trial.outcome[:2]
    for ours, theirs in zip(again.outcome.curve, trial.outcome.curve, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_run_result_without_a_limit_has_no_memory_ratio() -> None:
    run = RunResult(status=Status.CAPPED, seed=0, stop_reason="", peak_memory_gib=1.0)
    assert told(record(0.5).model_copy(update={"runs": (run,)})).memory_ratio is None


def related(found: TrialRecord, *, space: SearchSpace = SPACE, **changes: Any) -> CarriedOver:
    return related_trials([found], name="earlier", space=space, workload=changed(**changes))


def test_trial_of_the_same_network_or_data_is_related_by_its_recipe() -> None:
    """Its rate lies outside of this range, and counts as the range's end."""
    space = SearchSpace.from_tree({**TREE, "optimizer": {"sgd": {"lr": {"low": 0.6, "high": 2.0}}}})
    other = {"dataset": ImageFolder(root="flowers")}
    (trial,) = related(record(0.5, 0.7, 0.95), space=space, **other).trials
    assert (trial.task, trial.params) == ("earlier", {"optimizer.sgd.lr": 0.6, "epochs": 3})
    assert trial.outcome.curve.metric.tolist() == [0.5, 0.7, 0.95]
    assert prior_from_json(json.loads(json.dumps(prior_to_json(trial)))).task == "earlier"
    wider = SearchSpace.from_tree({**TREE, "model": {"resnet": {"depth": 8}}})
    assert len(related(record(0.5), space=wider).trials) == 1, "the same data"
    assert reasons(related(record(0.5), space=wider, **other)) == ["another network and other data"]


def test_what_cannot_be_compared_is_not_related() -> None:
    unlike = "parameters that do not fit this space"
    assert reasons(related(record(0.5, status=Status.FAILED))) == [unlike]
    space = SearchSpace.from_tree({**TREE, "batch_size": {"choices": [64, 128]}})
    assert reasons(related(record(0.5), space=space)) == [unlike]


def test_parameters_are_read_off_a_recipe_through_what_was_chosen() -> None:
    choices = {"sgd": {"lr": {"low": 0.1, "high": 1.0}}, "adam": {"lr": {"low": 0.1, "high": 1.0}}}
    space = SearchSpace.from_tree(
        {"optimizer": {"choices": choices}, "epochs": {"choices": [2, 3]}}
    )
    recipe = {"optimizer": {"adam": {"lr": 0.3, "eps": 1e-8}}, "epochs": 3, "batch_size": 64}
    assert params_in(recipe, space) == {"optimizer": "adam", "optimizer.adam.lr": 0.3, "epochs": 3}
    assert params_in({"optimizer": {"muon": {"lr": 0.3}}, "epochs": 3}, space) is None
    assert params_in({"optimizer": {"sgd": {}}, "epochs": 3}, space) is None
