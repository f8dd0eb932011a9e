"""Commands that need no search: in this process where that is enough."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
from helpers.command import TINY_STUDY, TUNE_SPEED, Done, environment
from helpers.imports import imported_by_command

from tune_speed.cli import checks, main, show
from tune_speed.core.errors import ServiceError
from tune_speed.reporting.listings.listings import techniques_table
from tune_speed.runtime.file_lock import PREFIX, TemporaryFolder
from tune_speed.study.yaml import read_yaml
from tune_speed.tuning.ray import cluster

Call = Callable[..., Done]
RECIPE = TINY_STUDY.replace("{low: 0.02, high: 0.4, log: true}", "0.1")
RECIPE = RECIPE.replace("{low: 1, high: 10}", "4").replace("{choices: [25, 50]}", "50")
RECIPE += "run: {cpu_threads: 1}\n"

NOTHING_INSTALLED = """
import os, sys
sys.modules.update(dict.fromkeys(("mlflow", "ray", "optuna")))
from tune_speed.cli.main import main
for command in sys.argv[1:]:
    sys.argv = ["tune-speed", *command.split()]
    try:
        main()
    except SystemExit as ended:
        print("ended:", ended.code, *sorted(os.listdir()))
"""
"""Runs commands, one after the other, and says of each how it ended and what there is then."""


@pytest.mark.parametrize(
    "what", [each for each in get_args(show.Listing) if each not in ("studies", "trials")]
)
def test_each_listing_has_a_line_on_each_entry(what: str, call: Call, tmp_path: Path) -> None:
    done = call("list", what, "--json", folder=tmp_path)
    assert done.code == 0
    assert done.json
    assert all(row["name"] and len(row["about"]) > 10 for row in done.json)


def test_listing_on_a_terminal_names_every_model(call: Call, tmp_path: Path) -> None:
    done = call("list", "models", folder=tmp_path)
    assert done.code == 0
    assert all(name in done.out for name in ("resnet20", "timm", "torchvision"))


def test_list_with_a_name_explains_the_entry(call: Call, tmp_path: Path) -> None:
    out = call("list", "optimizers", "sgd", folder=tmp_path).out
    assert "source: Sutskever" in out and "momentum" in out
    found = call("list", "optimizers", "sgd", "--json", folder=tmp_path).json
    assert found["fields"][0]["field"] == "lr"
    wrong = call("list", "optimizers", "sdg", folder=tmp_path)
    assert (wrong.code, "did you mean `sgd`?" in wrong.err) == (2, True)


@pytest.mark.parametrize(
    ("form", "beginning"),
    [("markdown", "| name | about | fields |"), ("csv", "name,about,fields"), ("json", "[")],
)
def test_listing_has_other_forms(form: str, beginning: str, call: Call, tmp_path: Path) -> None:
    done = call("list", "orders", "--format", form, folder=tmp_path)
    assert done.code == 0
    first, *rest = done.out.splitlines()
    assert first == beginning
    assert any("repeat_factor" in line for line in rest)


def test_markdown_of_the_techniques_is_the_readmes_table(call: Call, tmp_path: Path) -> None:
    done = call("list", "techniques", "--format", "markdown", folder=tmp_path)
    assert done.code == 0
    assert done.out.strip() == techniques_table()


@pytest.mark.slow
def test_schema_accepts_the_shipped_files(call: Call, tmp_path: Path) -> None:
    done = call("schema", folder=tmp_path)
    assert done.code == 0
    schema = done.json
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for file in (Path(__file__).parents[2] / "search_spaces").glob("*.yaml"):
        validator.validate(read_yaml(file).tree)


@pytest.mark.parametrize(
    "command",
    sorted(c.name or c.callback.__name__ for c in main.app.registered_commands if c.callback),
)
def test_help_of_each_command_has_an_example(command: str, call: Call, tmp_path: Path) -> None:
    name = command.rstrip("_")
    done = call(name, "--help", folder=tmp_path)
    assert done.code == 0
    assert f"Example: tune-speed {name}" in done.out
    assert name in ("schema", "doctor") or "--json" in done.out


def test_help_imports_no_library_but_typer() -> None:
    heavy = ("torch", "ray", "mlflow", "optuna", "numpy", "pydantic", "yaml", "rich")
    assert imported_by_command("--help", names=heavy) == set()


def test_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tune_speed", "best", "--top", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "python -m tune_speed best" in done.stderr and "--top" in done.stderr


@pytest.mark.slow
def test_what_searches_nothing_works_where_ray_mlflow_and_optuna_are_not_installed(
    tmp_path: Path,
) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    ablate = "ablate recipe.yaml --axes label_smoothing=0.1 --seeds 1 --set epochs=0.2"
    commands = ("profile recipe.yaml --steps 2", "train recipe.yaml --json", ablate)
    done = subprocess.run(
        [sys.executable, "-c", NOTHING_INSTALLED, *commands],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    parts = re.split(r"^ended: (\S+) (.*)\n", done.stdout, flags=re.MULTILINE)
    profiled, trained, ablated = parts[::3][:3]
    assert parts[1] in ("0", "None") and {*parts[2].split()} <= {"recipe.yaml", "turnstile"}
    assert "backward" in profiled and "advice: " in profiled
    assert max(map(len, profiled.splitlines())) <= 100
    assert parts[4] in ("0", "None", "1"), done.stderr
    assert json.loads(trained)["runs"][0]["steps"] == 24
    assert parts[7] in ("0", "None"), done.stderr
    assert "label_smoothing=0.1" in ablated
    assert "MLflow is not installed: the runs are in the ledger only" in done.stderr
    assert not (tmp_path / "mlflow.db").exists()


@pytest.mark.slow
def test_train_with_seeds_says_how_sure_it_is(call: Call, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    done = call("train", "recipe.yaml", "--seeds", "2", "--set", "epochs=6", folder=tmp_path)
    assert done.code in (0, 1)
    assert "/2  (95 % interval of the rate:" in done.out
    assert "n = 2" in done.out
    assert done.err.count("epoch 6.00") == 2


def test_train_of_a_searched_file_says_what_to_fix(call: Call, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY_STUDY)
    done = call("train", "tiny.yaml", folder=tmp_path)
    assert done.code == 2
    assert "Fix it with `--set epochs=VALUE`" in done.err


@pytest.mark.slow
def test_train_of_an_unreachable_target_ends_with_code_1(call: Call, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    options = ("--set", "epochs=1", "--set", "workload.target.value=1.0")
    done = call("train", "recipe.yaml", *options, folder=tmp_path)
    assert done.code == 1
    assert "met the target   0/1" in done.out


@pytest.mark.slow
def test_doctor_finds_this_machine_fit(call: Call, tmp_path: Path) -> None:
    found = call("doctor", "--json", folder=tmp_path).json
    findings = {finding["check"]: finding for finding in found}
    assert {"python", "packages", "device", "turnstile", "ray", "mlflow"} <= set(findings)
    assert findings["turnstile"]["is_ok"], findings
    assert findings["ray"]["is_ok"], findings
    assert findings["mlflow"]["is_ok"], findings


def test_doctor_leaves_no_cluster_behind(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that is up at once stands in for Ray's, which the slow test above starts."""
    asked: list[str] = []
    monkeypatch.setattr(cluster, "connect", lambda address, **_: asked.append(f"to {address}"))
    monkeypatch.setattr(cluster, "node_cpus", lambda: 3.0)
    monkeypatch.setattr(cluster, "disconnect", lambda: asked.append("disconnect"))
    found = call("doctor", "--json", folder=tmp_path).json
    findings = {finding["check"]: finding for finding in found}
    assert {"python", "packages", "device", "turnstile"} <= set(findings)
    assert findings["turnstile"]["is_ok"] and findings["mlflow"]["is_ok"], findings
    assert findings["ray"]["is_ok"]
    assert findings["ray"]["found"] == "a local cluster starts; 3 CPUs"
    assert asked == ["to None", "disconnect"]


def test_doctor_names_what_killed_sessions_left_and_removes_it_where_it_is_told_to(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(checks, "CHECKS", {"leftovers": checks.CHECKS["leftovers"]})
    left = tmp_path / f"{PREFIX}1" / "ray"
    left.mkdir(parents=True)
    (left / "state").write_bytes(bytes(2_500_000))
    with TemporaryFolder() as ours:
        (found,) = call("doctor", "--json", folder=tmp_path).json
        said = f"of killed sessions: {left.parent} (2.5 MB); `tune-speed doctor --clean` removes"
        assert found["is_ok"] and found["found"].startswith(said)
        (found,) = call("doctor", "--clean", "--json", folder=tmp_path).json
        assert found["found"] == "nothing of killed sessions"
        assert ours.exists() and not left.parent.exists()


def test_doctor_says_what_is_broken_and_ends_with_code_1(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(address: object, **_: object) -> None:
        raise ServiceError("a local Ray must start, but got: no")

    monkeypatch.setattr(cluster, "connect", fails)
    done = call("doctor", folder=tmp_path)
    (line,) = (line for line in done.out.splitlines() if line.split()[:1] == ["ray"])
    assert done.code == 1 and "PROBLEM" in line and "a local Ray must start" in done.out
    assert "mlflow" in done.out


AWAY = """
import os, sys, tempfile
from tune_speed.cli.main import main
os.chdir(folder := tempfile.mkdtemp())
os.rmdir(folder)
sys.argv = ["tune-speed", "list", "studies"]
main()
"""


def test_command_in_a_folder_that_was_removed_is_refused_in_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", AWAY], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    said = "error: the working directory was removed. Change to another folder."
    assert done.stderr.splitlines() == [said]


def test_terminal_without_our_characters_gets_question_marks(tmp_path: Path) -> None:
    command = [TUNE_SPEED, "list", "techniques"]
    variables = {**environment(tmp_path), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "?" in done.stdout and done.stdout.isascii()


def test_command_is_installed() -> None:
    assert Path(TUNE_SPEED).exists()
