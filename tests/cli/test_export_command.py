"""`best --export` and `show --export`: the winner in others' forms."""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.command import Done, environment, run_inside
from helpers.data.files import write_noise
from helpers.experiments.exports import scores_of
from helpers.making import make_record, make_run
from helpers.tracking.stores import store_of

from tune_speed.core.records import TrialRecord
from tune_speed.study.file import load_recipe

Call = Callable[..., Done]
WORKLOAD = {
    "dataset": {"name": "digits"},
    "target": {"metric": "accuracy", "value": 0.97},
    "split": {"validation_frac": 0.2},
}
RECIPE: dict[str, Any] = {
    "model": {"resnet20": {}},
    "optimizer": {"adamw": {"lr": 0.0036, "weight_decay": 0.0012}},
    "lr_schedule": {"one_cycle": {"pct_start": 0.2, "div_factor": 10.0}},
    "epochs": 3.0,
    "batch_size": 32,
    "accumulation_steps": 2,
}
ALONE = """
import runpy, sys
for name in ("tune_speed", "ray", "mlflow", "optuna", "pydantic"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script where this package, and what it needs beside torch, cannot be imported."""


def trial(name: str, *, time_s: float, **changes: Any) -> TrialRecord:
    record = make_record(name, time_s=time_s, study="digits", runs=(make_run(time_s=time_s),))
    recipe = {**RECIPE, **changes}
    return record.model_copy(update={"recipe": recipe, "workload": {**record.workload, **WORKLOAD}})


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    muon = {"muon": {"lr": 0.01}}
    plugged = trial("t0002", time_s=9.0).model_copy(update={"plugins": {"my_nets.py": "0" * 16}})
    records = [trial("t0000", time_s=1.0), trial("t0001", time_s=2.0, optimizer=muon), plugged]
    return store_of(records, folder=tmp_path_factory.mktemp("store"))


@pytest.fixture
def export(uri: str, tmp_path: Path) -> Call:
    def call(*arguments: str) -> Done:
        return run_inside(*arguments, folder=tmp_path, MLFLOW_TRACKING_URI=uri)

    return call


def test_suffix_says_which_form_a_file_has(export: Call, tmp_path: Path) -> None:
    for name in ("best.yaml", "best.txt", "train.py"):
        assert export("best", "--study", "digits", "--export", name).code == 0
    assert load_recipe(tmp_path / "best.yaml").recipe.epochs == 3.0
    assert (tmp_path / "best.txt").read_text().partition("\nstudy:")[2]
    script = (tmp_path / "train.py").read_text()
    compile(script, "train.py", "exec")
    assert "pl.Trainer" not in script
    # Without its head, as long as a person reads.
    assert len([line for line in script.splitlines() if not line.startswith("#")]) <= 260


def test_commands_say_how_to_train_what_they_wrote(export: Call, tmp_path: Path) -> None:
    said = export("best", "--study", "digits", "--export", "train.py").err
    assert said == "wrote train.py; train it with: python train.py\n"
    options = ("--export", "pl.py", "--format", "lightning")
    assert export("show", "digits/t0000", *options).err.endswith("train it with: python pl.py\n")
    assert "pl.Trainer(" in (tmp_path / "pl.py").read_text()


def test_head_of_a_script_says_where_it_comes_from(export: Call, tmp_path: Path) -> None:
    export("best", "--study", "digits", "--export", "train.py")
    first, *lines = (tmp_path / "train.py").read_text().splitlines()
    assert first.startswith('"""Trains one network: `python train.py --seed 1`. Needs torch, ')
    head = "\n".join(line for line in lines[:20] if line.startswith("# "))
    assert "digits/t0000, MLflow run" in head and "train it: python train.py" in head


def test_recipe_that_a_form_cannot_carry_is_refused_and_nothing_is_written(
    export: Call, tmp_path: Path
) -> None:
    done = export("show", "digits/t0001", "--export", "train.py")
    assert (done.code, (tmp_path / "train.py").exists()) == (2, False)
    assert (
        "recipe.optimizer: must be sgd, adam, adamw, timm in a plain script, but got muon."
        in done.err
    )
    done = export("best", "--study", "digits", "--export", "args.yaml", "--format", "timm")
    assert (done.code, (tmp_path / "args.yaml").exists()) == (2, False)
    for field in ("recipe.model", "recipe.lr_schedule", "workload.dataset"):
        assert f"{field}: must be " in done.err


def test_recipe_of_a_plugin_is_refused_as_a_script(export: Call) -> None:
    done = export("show", "digits/t0002", "--export", "train.py")
    assert done.code == 2 and "my_nets.py" in done.err


@pytest.mark.parametrize("command", [("best", "--study", "digits"), ("show", "digits/t0000")])
def test_form_needs_a_file(command: tuple[str, ...], export: Call) -> None:
    done = export(*command, "--format", "timm")
    assert (done.code, done.out) == (2, "")
    assert "--format timm must go with --export FILE." in done.err


def test_arguments_of_timm_are_written_with_the_command_that_takes_them(tmp_path: Path) -> None:
    root = write_noise(tmp_path / "images", {"train": 8, "test": 4}, size=8)
    dataset = {"name": "image_folder", "root": str(root), "image_size": 8}
    changes = {
        "model": {"timm": {"name": "resnet10t"}},
        "lr_schedule": {"cosine": {}},
        "accumulation_steps": 1,
        "batch_size": 8,
    }
    record = trial("t0000", time_s=1.0, **changes)
    runs = (make_run().model_copy(update={"batch_size": 8}),)
    workload = {**record.workload, "dataset": dataset}
    record = record.model_copy(update={"workload": workload, "runs": runs})
    uri = store_of([record], folder=tmp_path)
    options = ("--export", "args.yaml", "--format", "timm")
    done = run_inside("show", "digits/t0000", *options, folder=tmp_path, MLFLOW_TRACKING_URI=uri)
    assert done.code == 0, done.err
    assert "train it with: python train.py --config args.yaml" in done.err
    assert yaml.safe_load((tmp_path / "args.yaml").read_text())["model"] == "resnet10t"


@pytest.mark.slow
def test_script_alone_reaches_the_accuracy_that_train_reaches(export: Call, tmp_path: Path) -> None:
    """Three seeds each: the means are within 0.3 points."""
    for name in ("best.yaml", "train.py"):
        assert export("best", "--study", "digits", "--export", name).code == 0
    easy = ("--set", "workload.target.value=0.5")
    ours = run_inside("train", "best.yaml", "--seeds", "3", *easy, "--json", folder=tmp_path)
    assert ours.code == 0, ours.err
    accuracies = [run["evaluations"][-1]["accuracy"] for run in json.loads(ours.out)["runs"]]
    theirs = []
    for seed in range(3):
        done = subprocess.run(
            [sys.executable, "-I", "-c", ALONE, "train.py", "--seed", str(seed)],
            cwd=tmp_path,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        theirs.append(scores_of(done.stdout)[-1].accuracy)
    assert len(accuracies) == 3
    assert statistics.mean(theirs) == pytest.approx(statistics.mean(accuracies), abs=0.003)
    assert theirs == pytest.approx(accuracies, abs=0.004)
