"""Records of versions with other names read; files with them are refused, and told the new one."""

import json
from pathlib import Path

import pytest
from helpers.making import make_record
from helpers.tracking.stores import store_of

from tune_speed.components.schedules import SCHEDULES
from tune_speed.core.records import TrialRecord
from tune_speed.core.renamed import PRESENT, RENAMED, with_present_names
from tune_speed.reporting.trials.recipe_export import recipe_yaml
from tune_speed.study.file import parse_recipe
from tune_speed.tracking import Store, find_trial
from tune_speed.tracking.filter.where import parse_where
from tune_speed.tracking.reader.queries import Query, find_trials
from tune_speed.training.recipe import Recipe
from tune_speed.tuning.driver.ledger import Ledger

OLD = {
    "model": "resnet20",
    "optimizer": {"sgd": {"lr": 0.1}},
    "lr_schedule": {"step_drops": {"milestones": [0.5], "gamma": 0.1}},
    "epochs": 1.0,
    "batch_size": 32,
}
PARAMS = {"lr_schedule": "step_drops", "lr_schedule.step_drops.gamma": 0.1}


def old_record() -> TrialRecord:
    return make_record().model_copy(update={"recipe": OLD, "params": PARAMS})


def test_every_present_name_is_an_entry_and_no_former_one_is() -> None:
    assert set(RENAMED) == {"lr_schedule"}
    assert PRESENT.keys().isdisjoint(SCHEDULES)
    assert set(PRESENT.values()) <= set(SCHEDULES)


def test_recipe_has_present_names_in_either_form() -> None:
    new = with_present_names(OLD)
    assert new == OLD | {"lr_schedule": {"multi_step": {"milestones": [0.5], "gamma": 0.1}}}
    assert with_present_names(OLD | {"lr_schedule": "drop_on_stall"})["lr_schedule"] == (
        "reduce_on_plateau"
    )
    assert with_present_names(new) == new


def test_parameters_have_present_names() -> None:
    params = {"lr_schedule": "step_drops", "lr_schedule.step_drops.gamma": 0.1, "epochs": 2}
    assert with_present_names(params) == {
        "lr_schedule": "multi_step",
        "lr_schedule.multi_step.gamma": 0.1,
        "epochs": 2,
    }
    other = {"model": "step_drops", "lr_schedules.step_drops.gamma": 1, "a": {"step_drops": None}}
    assert with_present_names(other) == other


@pytest.mark.parametrize("as_json", [True, False])
def test_old_record_reads_as_one_of_today(as_json: bool) -> None:
    old = old_record().model_dump(mode="json")
    assert old["recipe"]["lr_schedule"].keys() == {"step_drops"}
    record = (
        TrialRecord.model_validate_json(json.dumps(old))
        if as_json
        else TrialRecord.model_validate(old)
    )
    assert Recipe.model_validate(record.recipe).lr_schedule == SCHEDULES["multi_step"](
        milestones=(0.5,)
    )
    assert record.params == {"lr_schedule": "multi_step", "lr_schedule.multi_step.gamma": 0.1}


def test_ledger_with_former_names_is_read(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.finished(old_record())
    assert "step_drops" in (tmp_path / "ledger.jsonl").read_text()
    with Ledger(tmp_path) as ledger:
        assert ledger.records["t0000"].recipe == with_present_names(OLD)


def test_old_record_in_mlflow_is_found_filtered_and_exported(tmp_path: Path) -> None:
    uri = store_of([old_record()], folder=tmp_path)
    record = find_trial(Store(uri), "study/t0000").record
    assert record.recipe == with_present_names(OLD)
    assert record.params["lr_schedule"] == "multi_step"
    matching = "lr_schedule=multi_step and lr_schedule.multi_step.gamma=0.1"
    assert [t.record for t in find_trials(Store(uri), Query(where=parse_where(matching)))] == [
        record
    ]
    text = recipe_yaml(record, run_id=None)
    assert "multi_step" in text and "step_drops" not in text
    again = parse_recipe(text, file="again.yaml", check_data=False)
    assert again.recipe == Recipe.model_validate(record.recipe)
