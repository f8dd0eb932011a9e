"""Relative paths of a study file start at its folder; those of calls and `--set` do not."""

from pathlib import Path

import pytest

from tune_speed.components.speedups.initial_weights import PretrainOther
from tune_speed.study.file import load_study, shipped_files, study_of
from tune_speed.study.yaml import scan_yaml

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
    """A study file in a folder that is not the current one."""
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
