"""Settings that have left the package are refused in a line, with what to do instead."""

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.command import Done

from tune_speed.core.errors import ConfigError
from tune_speed.core.renamed import LEFT, LEFT_MUST, LEFT_OPTIONS, Left
from tune_speed.study.file import StudyFile, study_of
from tune_speed.study.yaml import scan_yaml
from tune_speed.tuning.admission import Admitted, admit
from tune_speed.tuning.driver.ledger import Ledger

STUDY = """
study: tiny
workload: {dataset: digits, target: {value: 0.9}}
recipe:
  model: resnet20
  optimizer: {sgd: {lr: {low: 0.01, high: 1.0, log: true}}}
  lr_schedule: one_cycle
  epochs: 3
  batch_size: 32
search:
  trials: 5
"""
WRITTEN = {
    "goal": ("goal: {minimise: cost}\n", 12),
    "search.resources.device_types": ("  resources: {device_types: [H100, A10]}\n", 12),
    "workload.target.values": ("{values: [0.8, 0.9]}", 3),
    "workload.target.weights": ("{value: 0.9, weights: [1, 2]}", 3),
    "search.policy": ("  policy: tpe_penalty\n", 12),
}
SET = {
    "goal.minimise=cost": "goal",
    "goal={minimise: cost}": "goal",
    "search.resources.device_types=[H100, A10]": "search.resources.device_types",
    "search.resources={device_types: [H100, A10]}": "search.resources.device_types",
    "workload.target.values=[0.8, 0.9]": "workload.target.values",
    "workload.target={values: [0.8, 0.9]}": "workload.target.values",
    "workload.target.weights=[1, 2]": "workload.target.weights",
    "search.policy=tpe_penalty": "search.policy",
}


def written(path: str) -> tuple[str, int]:
    text, line = WRITTEN[path]
    return STUDY.replace("{value: 0.9}", text) if line == 3 else STUDY + text, line


def load(text: str, *overrides: str) -> StudyFile:
    return study_of(scan_yaml(text, file="tiny.yaml"), overrides=overrides, check_data=False)


def test_each_setting_is_tried() -> None:
    assert {each.path for each in LEFT} == set(WRITTEN) == set(SET.values())


@pytest.mark.parametrize("left", LEFT, ids=lambda left: f"{left.path}={left.value}")
def test_a_file_that_names_it_is_refused_with_its_line(left: Left) -> None:
    text, line = written(left.path)
    text = text.replace("tpe_penalty", str(left.value))
    with pytest.raises(ConfigError) as caught:
        load(text)
    (problem,) = caught.value.problems
    found = (problem.path, problem.line, problem.hint)
    assert found == (left.path, line, left.instead)
    assert str(caught.value).startswith(f"tiny.yaml:{line}: {left.path}: ")


@pytest.mark.parametrize("override", SET)
def test_an_override_that_names_it_is_refused(override: str) -> None:
    left = next(each for each in LEFT if each.path == SET[override])
    with pytest.raises(ConfigError) as caught:
        load(STUDY, override)
    assert len(caught.value.problems) == 1 and left.instead in str(caught.value)
    assert left.path in str(caught.value) and not str(caught.value).endswith("..")


@pytest.mark.parametrize("name", WRITTEN)
def test_a_study_that_was_begun_with_it_is_not_resumed(name: str, tmp_path: Path) -> None:
    text, line = written(name)
    with Ledger(tmp_path) as ledger:
        ledger.begin({"study": "tiny"})
        (tmp_path / "study.yaml").write_text(text)
        with pytest.raises(ConfigError) as caught:
            admit(ledger, Admitted(load(STUDY), tmp_path, "", "w", None), resume=True)
    message = str(caught.value)
    assert f"study.yaml:{line}: {name}: " in message and "warm_start=[tiny]" in message
    assert "\n" not in message


@pytest.mark.parametrize(("command", "option"), LEFT_OPTIONS)
def test_an_option_that_has_left_is_refused(
    call: Callable[..., Done], tmp_path: Path, command: str, option: str
) -> None:
    done = call(command, "study", option, folder=tmp_path)
    line = f"error: {command} {option} {LEFT_MUST}. {LEFT_OPTIONS[command, option]}"
    assert (done.code, done.err.strip()) == (2, line)
