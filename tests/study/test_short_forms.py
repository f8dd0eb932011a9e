"""Short forms of a study file, its goal and its paths mean what their whole forms mean."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tune_speed.components.speedups.initial_weights import PretrainOther
from tune_speed.core.errors import ConfigError, Problem
from tune_speed.custom.shipping import packed
from tune_speed.study.file import StudyFile, load_study, own_study_of, shipped_files, study_of
from tune_speed.study.schema import json_schema
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
    for text in (SHORT, WHOLE, WITH_GOAL.replace("{dataset: digits}", "digits")):
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


WITH_GOAL = """
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


def mistakes(text: str, *overrides: str) -> dict[str, tuple[int | None, str]]:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    return {problem.path: (problem.line, problem.must) for problem in caught.value.problems}


@pytest.mark.parametrize("workload", ["{dataset: digits}", "digits"])
def test_goal_is_the_target_and_the_limit_of_the_workload(workload: str) -> None:
    found = load(WITH_GOAL.replace("{dataset: digits}", workload)).workload
    assert (found.target.metric, found.target.mode) == ("accuracy", "max")
    assert found.target.within_s == found.max_train_s == 90.0
    assert found.target.words == "best accuracy within 90 s"
    assert found.label == "digits-accuracy-within-90s"


def test_goal_takes_overrides() -> None:
    found = load(WITH_GOAL, "goal.within=7s").workload
    assert found.target.within_s == found.max_train_s == 7.0


def test_a_metric_that_is_no_share_says_its_worst() -> None:
    loss = WITH_GOAL.replace("maximise: accuracy", "minimise: loss, worst: 2.0")
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
    found = mistakes(WITH_GOAL.replace("{maximise: accuracy, within: 1m30s}", wrong))
    line, told = found[path]
    assert line == 4 and must in told, found


@pytest.mark.parametrize("name", ["target: 0.9", "max_train_s: 60"])
def test_goal_and_what_it_says_are_not_both_given(name: str) -> None:
    found = mistakes(WITH_GOAL.replace("{dataset: digits}", f"{{dataset: digits, {name}}}"))
    path = f"workload.{name.partition(':')[0]}"
    assert found == {path: (3, "must be left out where `goal` is given, which says it")}


def test_what_a_goal_does_not_go_with_is_refused() -> None:
    until = "search.until={probability_of_better: 0.05}"
    assert "must be left out with a goal" in mistakes(WITH_GOAL, until)["search.until"][1]


def test_a_metric_called_cost_has_a_time_within_which_it_is_least() -> None:
    text = "goal: {minimise: cost, within: 9s, worst: 2.0}\nrecipe: {lr: {low: 0.1, high: 1.0}}\n"
    target = own_study_of(scan_yaml(text, file="own.yaml"), packed(my_train)).workload.target
    assert (target.metric, target.within_s) == ("cost", 9.0)


def test_a_training_function_has_goals_too() -> None:
    text = "goal: {maximise: accuracy, within: 5s}\nrecipe: {lr: {low: 0.1, high: 1.0}}\n"
    source = scan_yaml(text, file="own.yaml")
    found = own_study_of(source, packed(my_train)).workload
    assert (found.target.within_s, found.max_train_s) == (5.0, 5.0)


TEXT = """
study: tiny
workload:
  dataset: {name: image_folder, root: ROOT, image_size: 8}
  target: 0.9
  max_train_s: 10
recipe:
  model: {resnet20: {weights_file: WEIGHTS}}
  optimizer: {sgd: {lr: 0.1}}
  lr_schedule: one_cycle
  epochs: 1
  batch_size: 16
"""


def text(root: str = "../photos", weights: str = "null") -> str:
    return TEXT.replace("ROOT", root).replace("WEIGHTS", weights)


def root_of(file: Path, *overrides: str) -> str:
    study = load_study(file, overrides=overrides, check_data=False)
    root = study.workload.model_dump()["dataset"]["root"]
    assert isinstance(root, str)
    return root


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "studies").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "studies" / "tiny.yaml"


def test_a_path_starts_at_the_file_wherever_the_command_runs(file: Path) -> None:
    file.write_text(text())
    assert root_of(file) == str(file.parent.parent / "photos")
    assert root_of(Path("../studies/tiny.yaml")) == root_of(file)


def test_an_absolute_path_stays(file: Path) -> None:
    file.write_text(text("/photos"))
    assert root_of(file) == "/photos"


def test_a_path_of_set_starts_at_the_current_folder(file: Path) -> None:
    file.write_text(text())
    assert root_of(file, "workload.dataset.root=mine") == "mine"
    assert load_study(file, overrides=["workload.dataset.root=mine"], check_data=False).workload


def test_a_path_of_a_text_or_a_call_starts_at_the_current_folder() -> None:
    study = study_of(scan_yaml(text("photos"), file="space"), check_data=False)
    assert study.workload.model_dump()["dataset"]["root"] == "photos"


def test_a_shipped_file_finds_data_from_the_current_folder(file: Path) -> None:
    cwd = file.parent.parent / "elsewhere"
    assert root_of(shipped_files()["cifar10_resnet20"]) == str(cwd / "data")


def test_weights_are_found_from_the_file_too_searched_or_not(file: Path) -> None:
    file.write_text(text(weights="{choices: [a.pt, /b.pt, null]}"))
    recipe = load_study(file, check_data=False).tree["recipe"]
    found = recipe["model"]["resnet20"]["weights_file"]
    assert found == {"choices": [str(file.parent / "a.pt"), "/b.pt", None]}


def test_data_of_a_pretraining_are_found_from_the_file_too(file: Path) -> None:
    assert "dataset" in PretrainOther.model_fields
    init = "{pretrain_other: {dataset: {name: image_folder, root: more, image_size: 8}}}"
    file.write_text(f"{text()}  speedups: {{init: {init}}}\n")
    init = load_study(file, check_data=False).tree["recipe"]["speedups"]["init"]
    assert init["pretrain_other"]["dataset"]["root"] == str(file.parent / "more")
