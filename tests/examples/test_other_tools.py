"""The examples for other people's tools, run as their readers run them."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tune_speed.optuna import TimeToTargetSampler

HUB = Path(__file__).parent / "optunahub" / "samplers" / "time_to_target"
EXAMPLES = ("optuna_digits.py", "ray_digits.py")


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_fits_on_a_screen(name: str) -> None:
    assert len(Path(__file__).with_name(name).read_text().splitlines()) <= 40


def test_the_package_for_optunahub_has_its_layout_and_loads() -> None:
    names = {path.name for path in HUB.iterdir() if path.is_file()}
    assert names == {"README.md", "LICENSE", "__init__.py", "example.py", "requirements.txt"}
    head = yaml.safe_load(HUB.joinpath("README.md").read_text().split("---")[1])
    assert {"author", "title", "description", "tags", "optuna_versions", "license"} == set(head)
    assert "sampler" in head["tags"]
    # As OptunaHub loads a package of a registry on disk.
    spec = importlib.util.spec_from_file_location("time_to_target", HUB / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TimeToTargetSampler is TimeToTargetSampler


def test_the_example_for_optunahub_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(HUB / "example.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Recommendation(params={'lr'" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words", "found"),
    [("optuna_digits.py", (), "Recommendation("), ("ray_digits.py", ("8",), "Recommended(")],
)
def test_an_example_ends_with_a_recommendation(
    tmp_path: Path, name: str, words: tuple[str, ...], found: str
) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(name)), *words],
        cwd=tmp_path,
        # Ray writes its results there, and would join a cluster that another test has begun.
        env={**os.environ, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "RAY_ADDRESS": "local"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert found in done.stdout
