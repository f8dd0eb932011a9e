"""`tune-speed ablate` and `replicate` as a user runs them: real trainings, real MLflow."""

import csv
import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.command import TINY_STUDY, Done, run_inside, start
from helpers.experiments.ablations import RECIPE, write_recipe
from helpers.tracking.stores import store_of

from tune_speed import Results
from tune_speed.core.errors import DataError
from tune_speed.experiments.ablation import ablate

pytestmark = pytest.mark.slow

AXES = "accumulation_steps=2,loader.pin_memory=true,precision=fp16"
ABLATE = ("ablate", "tiny.yaml", "--axes", AXES, "--seeds", "2", "--set", "epochs=0.5")
ARMS = ["base", "accumulation_steps=2", "loader.pin_memory=true", "precision=fp16"]
Call = Callable[..., Done]


@pytest.fixture(scope="module")
def ablated(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> tuple[Path, Done]:
    """A folder in which the tiny recipe was ablated to the end, and what the command said."""
    os.environ["TUNE_SPEED_CACHE"] = str(session_cache)
    folder = tmp_path_factory.mktemp("ablated")
    write_recipe(folder)
    done = run_inside(*ABLATE, folder=folder)
    assert done.code == 0, done.err
    return folder, done


def trials_of(folder: Path, study: str = "tiny-ablation") -> Any:
    return Results(f"sqlite:///{folder}/mlflow.db").trials(study)


def test_table_has_every_arm_and_says_what_is_not_applicable(ablated: tuple[Path, Done]) -> None:
    _, done = ablated
    for part in (*ARMS, "speed-up", "Not applicable here (pinned memory speeds up copies to a GPU"):
        assert part in done.out
    row = next(line for line in done.out.splitlines() if line.startswith("precision=fp16"))
    assert set(row.removeprefix("precision=fp16").split()) == {"–"}
    assert max(map(len, done.out.splitlines())) <= 100
    runs = [line.partition(":")[0] for line in done.err.splitlines() if line.startswith("seed ")]
    assert runs == [
        "seed 4, base", "seed 4, accumulation_steps=2",
        "seed 5, accumulation_steps=2", "seed 5, base",
    ]  # fmt: skip
    assert "Traceback" not in done.err


def test_figures_and_picture_are_beside_the_ledger(ablated: tuple[Path, Done]) -> None:
    folder, done = ablated
    place = folder / "tune_speed_studies" / "tiny" / "ablation"
    assert f"wrote {place}/ablation-1.json and {place}/ablation-1.png" in done.err
    assert (place / "ablation-1.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads((place / "ablation-1.json").read_text())
    assert [arm["name"] for arm in figures["arms"]] == ARMS


def test_same_command_runs_nothing_and_prints_the_same(
    ablated: tuple[Path, Done], call: Call
) -> None:
    folder, first = ablated
    path = folder / "tune_speed_studies" / "tiny" / "ablation" / "ablation-1.jsonl"
    before = path.read_bytes()
    again = call(*ABLATE, folder=folder)
    assert (again.code, again.out) == (0, first.out)
    assert path.read_bytes() == before
    assert "going on after 4 runs" in again.err
    assert len(trials_of(folder)) == 4


def test_mlflow_has_a_study_with_a_run_for_each_arm_and_seed(
    ablated: tuple[Path, Done], call: Call
) -> None:
    folder, _ = ablated
    trials = trials_of(folder)
    listed = call("list", "studies", "--json", folder=folder).json
    assert [(row["study"], row["trials"]) for row in listed] == [("tiny-ablation", 4)]
    accumulation = trials["params.accumulation_steps"].fillna(1).astype(int)
    assert sorted(zip(accumulation, trials["seed"], strict=True)) == [
        (1, 4),
        (1, 5),
        (2, 4),
        (2, 5),
    ]


def test_json_has_all_arms_and_effects(ablated: tuple[Path, Done], call: Call) -> None:
    done = call(*ABLATE, "--json", folder=ablated[0])
    assert [arm["name"] for arm in done.json["arms"]] == ARMS
    assert [arm["n"] for arm in done.json["arms"]] == [2, 2, 0, 0]
    assert {effect["name"] for effect in done.json["effects"]} == {"accumulation_steps=2"}
    assert (done.json["planned_runs"], done.json["done_runs"]) == (4, 4)


def test_csv_has_a_row_an_arm(ablated: tuple[Path, Done], call: Call) -> None:
    done = call(*ABLATE, "--format", "csv", folder=ablated[0])
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [row["arm"] for row in rows] == ARMS
    assert [bool(row["not_applicable"]) for row in rows] == [False, False, True, True]
    assert float(rows[1]["speed_up"]) > 0 and rows[2]["speed_up"] == ""


def test_markdown_has_tables_of_arms_and_effects(ablated: tuple[Path, Done], call: Call) -> None:
    done = call(*ABLATE, "--format", "markdown", folder=ablated[0])
    tables = done.out.strip().split("\n\n")
    assert [table.count("\n") - 1 for table in tables] == [4, 3]  # speed, accuracy, macro F1
    assert all(line.startswith("|") for table in tables for line in table.splitlines())


def test_other_options_are_refused_with_exit_code_2(ablated: tuple[Path, Done], call: Call) -> None:
    done = call(*ABLATE[:-4], "--seeds", "3", "--set", "epochs=0.5", folder=ablated[0])
    assert (done.code, done.out) == (2, "")
    assert "error: an ablation that was begun must go on as it began" in done.err
    assert "seeds = 2, now 3" in done.err


def test_again_begins_anew_and_picture_goes_where_it_is_told(
    ablated: tuple[Path, Done], call: Call, tmp_path: Path
) -> None:
    write_recipe(tmp_path)
    store_of([], folder=tmp_path)
    options = ("--axes", "label_smoothing=0.1", "--seeds", "1", "--set", "epochs=0.1")
    first = call("ablate", "tiny.yaml", *options, folder=tmp_path)
    again = call("ablate", "tiny.yaml", *options, "--again", "--plot", "a.svg", folder=tmp_path)
    assert (first.code, again.code) == (0, 0)
    assert "<svg" in (tmp_path / "a.svg").read_text()
    assert len(trials_of(tmp_path)) == len(trials_of(tmp_path, "tiny-ablation-2")) == 2
    studies = call("list", "studies", "--json", folder=tmp_path).json
    assert sorted(row["study"] for row in studies) == ["tiny-ablation", "tiny-ablation-2"]


@pytest.mark.parametrize(
    ("text", "options", "told"),
    [
        (RECIPE, (), "has no section `ablate`. Try `--axes"),
        (RECIPE, ("--axes", "precision"), "--axes: must be written as path=value"),
        (RECIPE, ("--axes", "precision=fp17"), '--set precision="fp17": recipe.precision: must'),
        (RECIPE, ("--axes", "epochs=1"), "every axis must change the recipe, but epochs=1"),
        (RECIPE, ("--axes", "workload.target.value=0.5"), "must be a field of the recipe"),
        (RECIPE, ("--axes", "epochs=2", "--design", "all"), "ablate.design: must be"),
        (RECIPE, ("--axes", "epochs=2", "--retune", "typo"), "`retune` must name a number"),
        (TINY_STUDY, ("--axes", "epochs=2"), "Fix it with `--set optimizer.sgd.lr=VALUE`, or run"),
    ],
)
def test_wrong_input_ends_with_exit_code_2_before_anything_runs(
    tmp_path: Path, call: Call, text: str, options: tuple[str, ...], told: str
) -> None:
    write_recipe(tmp_path, text)
    done = call("ablate", "tiny.yaml", *options, folder=tmp_path)
    assert (done.code, done.out) == (2, "")
    assert told in done.err
    assert not (tmp_path / "tune_speed_studies").exists()


def test_missing_data_end_with_exit_code_3(
    tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise DataError("the data are gone")

    monkeypatch.setattr(ablate, "train_once", gone)
    write_recipe(tmp_path)
    done = call("ablate", "tiny.yaml", "--axes", "epochs=2", folder=tmp_path)
    assert (done.code, "error: the data are gone" in done.err) == (3, True)


def test_ctrl_c_prints_what_is_done_and_the_same_command_goes_on(tmp_path: Path) -> None:
    write_recipe(tmp_path)
    command = (
        "ablate",
        "tiny.yaml",
        "--axes",
        "label_smoothing=0.1",
        "--seeds",
        "500",
        "--set",
        "epochs=0.2",
    )
    process = start(*command, folder=tmp_path)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("seed 5, "):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "label_smoothing=0.1" in out
    assert "stopped; the same command resumes" in err
    assert "Traceback" not in err
    path = tmp_path / "tune_speed_studies" / "tiny" / "ablation" / "ablation-1.jsonl"
    runs = [event for line in path.read_text().splitlines() if (event := json.loads(line))]
    assert [event["event"] for event in runs[:4]] == ["begin", "ran", "ran", "ran"]


# --- replicate


def test_replication_ends_with_the_papers_figures_beside_ours(tmp_path: Path, call: Call) -> None:
    smaller = ("--seeds", "2", "--set", "epochs=0.2", "--set", "recipe.model={resnet: {depth: 8}}")
    command = ("replicate", "factorial", "--profile", "cpu", *smaller)
    store_of([], folder=tmp_path)
    done = call(*command, "--arms", folder=tmp_path)
    assert done.code == 0, done.err
    for part in ("paper", "ours", "agrees?", "AMP", "not applicable"):
        assert part in done.out
    folder = tmp_path / "tune_speed_studies" / "replication-factorial-cpu"
    outcome = json.loads((folder / "replication.json").read_text())
    assert (outcome["name"], outcome["profile"]) == ("factorial", "cpu")
    assert outcome["done_runs"] == outcome["planned_runs"] == 8
    assert outcome["rows"] and outcome["caveats"]
    assert f"wrote {folder}/replication.json" in done.err
    again = call(*command, "--json", folder=tmp_path)
    assert (again.code, again.json) == (0, outcome)
    assert "going on after 8 runs" in again.err
