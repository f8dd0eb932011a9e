"""A goal says in two words what a target and a time limit would, and nothing is said twice."""

from typing import Any

import jsonschema
import pytest

from tune_speed.core.errors import ConfigError
from tune_speed.custom.shipping import packed
from tune_speed.study.file import StudyFile, own_study_of, study_of
from tune_speed.study.json_schema import json_schema
from tune_speed.study.yaml import scan_yaml

STUDY = """
study: tiny
workload: {dataset: digits}
goal: {maximise: accuracy, within: 1m30s}
recipe:
  model: resnet20
  optimizer: {sgd: {lr: {low: 0.01, high: 1.0, log: true}}}
  lr_schedule: one_cycle
  epochs: {low: 1, high: 9}
  batch_size: 32
"""


def own_loop(params: Any, run: Any) -> None:
    """A training function; nobody calls it."""


def load(text: str, *overrides: str) -> StudyFile:
    return study_of(scan_yaml(text, file="tiny.yaml"), overrides=overrides, check_data=False)


def mistakes(text: str, *overrides: str) -> dict[str, tuple[int | None, str]]:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    return {problem.path: (problem.line, problem.must) for problem in caught.value.problems}


@pytest.mark.parametrize("workload", ["{dataset: digits}", "digits"])
def test_goal_is_the_target_and_the_limit_of_the_workload(workload: str) -> None:
    found = load(STUDY.replace("{dataset: digits}", workload)).workload
    assert (found.target.metric, found.target.mode) == ("accuracy", "max")
    assert found.target.within_s == found.max_train_s == 90.0
    assert found.target.words == "best accuracy within 90 s"
    assert found.label == "digits-accuracy-within-90s"


def test_goal_takes_overrides() -> None:
    found = load(STUDY, "goal.within=7s").workload
    assert found.target.within_s == found.max_train_s == 7.0


def test_a_metric_that_is_no_share_says_its_worst() -> None:
    loss = STUDY.replace("maximise: accuracy", "minimise: loss, worst: 2.0")
    target = load(loss).workload.target
    assert (target.mode, target.value, target.words) == ("min", 2.0, "best loss within 90 s")
    (must,) = (m for _, m in mistakes(loss.replace(", worst: 2.0", "")).values() if "worst" in m)
    assert must.startswith("worst must be given for loss")


@pytest.mark.parametrize(
    ("wrong", "path", "must"),
    [
        ("{within: 60s}", "goal", "exactly one of maximise and minimise"),
        ("{maximise: accuracy, minimise: loss, within: 60s}", "goal", "exactly one of"),
        ("{maximise: accuracy}", "goal.within", "must be given"),
        ("{minimise: cost, worst: 1.0}", "goal.within", "must be given"),
        ("{maximise: accuracy, within: soon}", "goal.within", "must be a duration"),
        ("{maximise: speed, within: 60s}", "goal", "worst must be given for speed"),
    ],
)
def test_a_goal_with_a_mistake_is_told_with_its_line(wrong: str, path: str, must: str) -> None:
    found = mistakes(STUDY.replace("{maximise: accuracy, within: 1m30s}", wrong))
    line, told = found[path]
    assert line == 4 and must in told, found


@pytest.mark.parametrize("name", ["target: 0.9", "max_train_s: 60"])
def test_goal_and_what_it_says_are_not_both_given(name: str) -> None:
    found = mistakes(STUDY.replace("{dataset: digits}", f"{{dataset: digits, {name}}}"))
    path = f"workload.{name.partition(':')[0]}"
    assert found == {path: (3, "must be left out where `goal` is given, which says it")}


def test_what_a_goal_does_not_go_with_is_refused() -> None:
    until = "search.until={probability_of_better: 0.05}"
    assert "must be left out with a goal" in mistakes(STUDY, until)["search.until"][1]


def test_a_metric_called_cost_has_a_time_within_which_it_is_least() -> None:
    text = "goal: {minimise: cost, within: 9s, worst: 2.0}\nrecipe: {lr: {low: 0.1, high: 1.0}}\n"
    target = own_study_of(scan_yaml(text, file="own.yaml"), packed(own_loop)).workload.target
    assert (target.metric, target.within_s) == ("cost", 9.0)


def test_a_training_function_has_goals_too() -> None:
    text = "goal: {maximise: accuracy, within: 5s}\nrecipe: {lr: {low: 0.1, high: 1.0}}\n"
    source = scan_yaml(text, file="own.yaml")
    found = own_study_of(source, packed(own_loop)).workload
    assert (found.target.within_s, found.max_train_s) == (5.0, 5.0)


def test_editors_accept_it() -> None:
    tree = scan_yaml(STUDY, file="tiny.yaml").tree
    tree = {**tree, "workload": "digits"}
    jsonschema.validate(tree, json_schema())
