import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from helpers.command import build_wheel

from tune_speed.study.file import find_file, load_study, shipped_files
from tune_speed.training.recipe import Recipe

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "search_spaces").glob("*.yaml"))


def test_shipped_files_are_found_by_name():
    assert sorted(shipped_files()) == NAMES
    assert {"digits_quickstart", "cifar10_resnet20", "cifar10_resnet18"} <= set(NAMES)


def test_file_that_is_there_comes_before_a_shipped_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_file("digits_quickstart").name == "digits_quickstart.yaml"
    Path("digits_quickstart").write_text("a: 1")
    assert find_file("digits_quickstart") == Path("digits_quickstart")


@pytest.mark.parametrize("name", NAMES)
def test_shipped_file_is_a_study_whose_points_are_recipes(name):
    study = load_study(name, check_data=False)
    assert study.name.replace("-", "_") == name
    for params in list(study.space.corners(limit=1))[:8]:
        Recipe.model_validate(study.space.build(params))


def test_quickstart_fits_two_cores_and_three_minutes():
    search = load_study("digits_quickstart").search
    assert (search.concurrent, search.resources.cpu, search.resources.gpu) == (2, 1, 0)
    assert search.time_budget_s is not None and search.time_budget_s <= 180


@pytest.mark.parametrize("name", ["cifar10_resnet20", "cifar10_resnet18"])
def test_gpu_studies_share_one_gpu(name):
    search = load_study(name, check_data=False).search
    assert search.resources.gpu == 0.25
    assert search.concurrent * search.resources.gpu == 1


@pytest.mark.slow
def test_wheel_brings_the_shipped_files(tmp_path):
    wheel = build_wheel(tmp_path)
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    code = "from tune_speed.study.file import shipped_files; print(*shipped_files().values())"
    seen = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "installed",
        env={"PYTHONPATH": str(tmp_path / "installed")},
        check=True,
        capture_output=True,
        text=True,
    )
    folder = tmp_path / "installed" / "tune_speed" / "search_spaces"
    assert seen.stdout.split() == [str(folder / f"{name}.yaml") for name in NAMES]
