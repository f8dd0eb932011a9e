"""Short forms of a study file mean what their whole forms mean, wherever they are written."""

from typing import Any

import jsonschema
import pytest

from tune_speed.core.errors import ConfigError, Problem
from tune_speed.custom.shipping import packed
from tune_speed.study.file import StudyFile, own_study_of, study_of
from tune_speed.study.json_schema import json_schema
from tune_speed.study.yaml import scan_yaml

WHOLE = """
study: tiny
workload:
  dataset: digits
  target: {value: 0.95}
  max_train_s: 90.0
recipe:
  model: resnet20
  optimizer: {choices: {sgd: {lr: 0.1, momentum: {choices: [0.8, 0.9]}}, adamw: {lr: 0.001}}}
  lr_schedule: {choices: [one_cycle, constant]}
  epochs: 3
  batch_size: {choices: [32, 64]}
  speedups: {averaging: {choices: ["off", ema]}}
"""
SHORT = """
study: tiny
workload: {dataset: digits, target: 0.95, max_train_s: 1m30s}
recipe:
  model: resnet20
  optimizer: {choices: {sgd: {lr: 0.1, momentum: [0.8, 0.9]}, adamw: {lr: 0.001}}}
  lr_schedule: [one_cycle, constant]
  epochs: 3
  batch_size: [32, 64]
  speedups: {averaging: ["off", ema]}
"""


def my_train(params: dict[str, Any], run: Any) -> None: ...


def load(text: str, *overrides: str) -> StudyFile:
    return study_of(scan_yaml(text, file="tiny.yaml"), overrides=overrides, check_data=False)


def problems_of(text: str, *overrides: str) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    return caught.value.problems


def test_a_number_is_a_target_a_text_a_duration_and_a_list_the_choices() -> None:
    short, whole = load(SHORT), load(WHOLE)
    assert (short.workload, short.space.hash) == (whole.workload, whole.space.hash)
    assert short.tree == whole.tree


def test_short_forms_are_taken_on_the_command_line() -> None:
    study = load(WHOLE, "workload.target=0.97", "workload.max_train_s=2m", "batch_size=[16, 32]")
    assert (study.workload.target.value, study.workload.max_train_s) == (0.97, 120.0)
    (batch_size,) = (p for p in study.space.parameters if p.name == "batch_size")
    assert batch_size.choices == (16, 32)


def test_field_of_a_short_form_can_be_overridden() -> None:
    study = load(SHORT, "workload.target.metric=macro_f1", "lr_schedule.one_cycle.pct_start=0.2")
    assert (study.workload.target.metric, study.workload.target.value) == ("macro_f1", 0.95)


def test_short_forms_are_valid_in_editors() -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    for text in (SHORT, WHOLE):
        assert list(validator.iter_errors(scan_yaml(text).tree)) == []


def test_list_of_a_field_that_takes_one_stays_what_it_is() -> None:
    milestones = "lr_schedule={multi_step: {milestones: [0.5, 0.75]}}"
    assert "lr_schedule" not in {
        p.name.split(".")[0] for p in load(SHORT, milestones).space.parameters
    }


def test_wrong_values_in_short_forms_are_told_as_in_whole_ones() -> None:
    (target,) = problems_of(SHORT.replace("0.95", "1.95"))
    assert target.must == "must be more than 0 and at most 1 for accuracy"
    (limit,) = problems_of(SHORT.replace("1m30s", "soon"))
    assert limit.path == "workload.max_train_s"
    (choices,) = problems_of(SHORT.replace("[32, 64]", "[32, many]"))
    assert choices.path == "recipe.batch_size" and choices.line == 9


def test_target_of_a_training_function_may_be_a_number() -> None:
    text = "workload: {target: 0.9, max_train_s: 1m}\nrecipe: {lr: {low: 0.1, high: 1.0}}\n"
    study = own_study_of(scan_yaml(text, file="own.yaml"), packed(my_train))
    assert (study.workload.target.value, study.workload.max_train_s) == (0.9, 60.0)
