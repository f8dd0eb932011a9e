"""`list`, `show` and `compare` over a real store with two devices, a miss and a certified trial."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from helpers.command import Done
from helpers.making import make_record, make_run
from helpers.tracking.stores import store_of

from tune_speed.api.results import trials_frame, write_parquet
from tune_speed.core.records import Status, TrialRecord
from tune_speed.study.file import parse_recipe
from tune_speed.tracking import Store, find_trial

CPU, GPU = "cpu (1 threads, test)", "NVIDIA H200"
CIFAR = {"dataset": {"name": "cifar10"}, "target": {"metric": "accuracy", "value": 0.9}}
RESNET20 = {"model": {"resnet20": {"stem": "cifar"}}, "epochs": 2.0, "batch_size": 32}


Call = Callable[..., Done]


def trial(
    number: int, time_s: float, status: Status = Status.REACHED, **fields: Any
) -> TrialRecord:
    optimizer = ("sgd", "adamw")[number % 2]
    chosen = {"optimizer": optimizer, f"optimizer.{optimizer}.lr": 0.1}
    made = make_record(f"t{number:04d}", status, time_s=time_s, params=chosen, **fields)
    recipe = {**RESNET20, "optimizer": {optimizer: {"lr": 0.1}}}
    return made.model_copy(update={"recipe": recipe})


def records() -> Iterator[TrialRecord]:
    for number, time_s in enumerate([4.0, 2.0, 2.5]):
        yield trial(number, time_s, study="digits")
    yield trial(3, 1.0, Status.MISSED, study="digits")
    yield trial(4, 0.5, study="digits", device=GPU)
    runs = tuple(make_run(time_s=3.0 + seed, seed=seed) for seed in range(3))
    yield trial(1, 3.0, study="digits", runs=runs, kind="certified")
    cifar = trial(0, 60.0, study="cifar", device=GPU, workload_hash="c" * 16)
    yield cifar.model_copy(update={"workload": {**cifar.workload, **CIFAR}})


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return store_of(records(), folder=tmp_path_factory.mktemp("store"))


@pytest.fixture
def call(call: Call, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs a command over the store, which must end with `code`."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)

    def run(*arguments: str, code: int = 0) -> Done:
        done = call(*arguments, folder=tmp_path)
        assert done.code == code, done.err
        return done

    return run


def test_trials_of_a_study_are_listed_with_all_fields(call: Call) -> None:
    rows = call("list", "trials", "--study", "digits", "--json").json
    assert rows == call("list", "trials", "digits", "--json").json
    assert [(row["device"], row["kind"], row["trial_id"]) for row in rows] == [
        (GPU, "estimate", "t0004"),
        (CPU, "certified", "t0001"),
        *((CPU, "estimate", name) for name in ("t0001", "t0002", "t0000", "t0003")),
    ]
    assert rows[-1]["status"] == "missed" and rows[-1]["time_to_target_s"] is None
    assert rows[0]["params"] == {"optimizer": "sgd", "optimizer.sgd.lr": 0.1}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--where", "optimizer=adamw and kind=estimate"), ["t0001", "t0003"]),
        (("--where", "status = missed"), ["t0003"]),
        (("--top", "1"), ["t0004", "t0001", "t0001"]),
        (("--where", "n > 99"), []),
    ],
)
def test_trials_are_filtered(call: Call, options: tuple[str, ...], names: list[str]) -> None:
    out = call("list", "trials", "--study", "digits", *options, "--format", "csv").out
    assert [row["trial_id"] for row in csv.DictReader(io.StringIO(out))] == names


def test_csv_of_trials_has_a_column_for_each_parameter(call: Call) -> None:
    out = call("list", "trials", "--study", "digits", "--format", "csv").out
    rows = {row["trial_id"]: row for row in csv.DictReader(io.StringIO(out))}
    assert rows["t0000"]["params.optimizer"] == "sgd"
    assert (rows["t0000"]["params.optimizer.sgd.lr"], rows["t0001"]["params.optimizer.sgd.lr"]) == (
        "0.1",
        "",
    )
    assert "params" not in rows["t0000"]


def test_a_terminal_and_markdown_have_the_main_figures(call: Call) -> None:
    table = call("list", "trials", "--study", "digits").out
    assert f"estimates, on {GPU}" in table and "t0002  optimizer=sgd lr=0.1" in table
    markdown = call("list", "trials", "--study", "digits", "--format", "markdown").out
    assert markdown.startswith("| trial_id | kind | status | time_to_target_s |")
    assert len(markdown.splitlines()) == 8


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("list", "trials"), "must have --study NAME"),
        (("list", "trials", "digits/t0003"), "`tune-speed show STUDY/TRIAL`"),
        (("list", "models", "--top", "3"), "--top must go with `list trials`"),
        (("list", "trials", "--study", "digits", "--where", "lr>"), "lr>\n     ^"),
        (("list", "trials", "--study", "digits", "--where", "optimiser=sgd"), "`optimizer`?"),
        (("compare", "digits/t0000"), "two different results or more"),
        (("compare", "digits/t0000", "digits/t0000"), "two different results or more"),
    ],
)
def test_mistakes_end_with_code_2(call: Call, arguments: tuple[str, ...], told: str) -> None:
    assert told in call(*arguments, code=2).err


def test_a_study_or_trial_that_is_not_there_is_wrong_input(call: Call) -> None:
    assert "did you mean `digits`?" in call("list", "trials", "--study", "digit", code=2).err
    assert "no such trial" in call("compare", "digits/t0000", "digits/t0777", code=2).err


def test_fields_of_filters_are_listed(call: Call) -> None:
    rows = {row["name"]: row["of"] for row in call("list", "fields", "--json").json}
    assert (rows["time_to_target_s"], rows["batch_size"]) == ("result", "recipe")


def test_show_leads_to_mlflow(call: Call, uri: str) -> None:
    run_id = find_trial(Store(uri), "digits/t0001").run_id
    last = call("show", "digits/t0001").out.splitlines()[-1]
    assert last.startswith(f"in MLflow: mlflow ui --backend-store-uri {uri}")
    assert last.endswith(f"/runs/{run_id}")
    found = call("show", "digits/t0001", "--json").json
    assert (found["url"], found["run_id"]) == (None, run_id)
    assert found["ui_command"] == f"mlflow ui --backend-store-uri {uri}"


def test_show_exports_a_recipe_that_reads_back_with_where_it_is_from(
    call: Call, tmp_path: Path, uri: str
) -> None:
    err = call("show", "digits/t0002", "--export", "best.yaml").err
    assert "train it with: tune-speed train best.yaml" in err
    text = (tmp_path / "best.yaml").read_text()
    assert text.startswith(
        f"# digits/t0002, MLflow run {find_trial(Store(uri), 'digits/t0002').run_id}"
    )
    assert parse_recipe(text, file="best.yaml").recipe.epochs == 2.0


def test_results_of_one_board_are_compared_and_ranked(call: Call) -> None:
    shown = call("compare", "digits/t0000", "digits/t0001", "--json")
    found = json.loads(shown.out)
    assert found["recipe"]["optimizer"] == ["sgd", "adamw"]
    assert "batch_size" not in found["recipe"]
    assert (found["result"]["rank"], found["is_comparable"]) == ([2, 1], True)
    assert "warning" not in shown.err


def test_equal_settings_are_shown_with_all(call: Call) -> None:
    found = call("compare", "digits/t0000", "digits/t0001", "--all", "--json").json
    assert found["recipe"]["batch_size"] == [32, 32]


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_results_of_two_devices_are_never_ranked_in_any_form(call: Call, form: str) -> None:
    names = ("digits/t0000", "digits/t0004", "digits/t0001@certified")
    shown = call("compare", *names, "--format", form)
    assert all(name in shown.out for name in names)
    assert "rank" not in shown.out
    assert "differ in device" in shown.err and "kind: estimate | estimate | certified" in shown.err


def test_comparison_as_csv_reads_back_unrounded(call: Call) -> None:
    out = call("compare", "digits/t0000", "digits/t0002", "--format", "csv").out
    rows = {row["field"]: row for row in csv.DictReader(io.StringIO(out))}
    assert rows["time_to_target_s"]["digits/t0002"] == "2.5"


def test_one_result_is_enough_beside_the_source_documents(call: Call) -> None:
    shown = call("compare", "cifar/t0000", "--with-paper")
    assert "ours and theirs" in shown.out and "Solomatov" in shown.out
    found = call("compare", "cifar/t0000", "--with-paper", "--json").json
    assert {row["run"] for row in found["paper"]["figures"]} == {"cifar/t0000"}


def test_what_nobody_published_is_said(call: Call) -> None:
    shown = call("compare", "digits/t0000", "--with-paper")
    assert "no source is known" in shown.err
    assert "ours and theirs" not in shown.out


def read_back(form: str, path: Path) -> list[dict[str, Any]]:
    if form == "csv":
        return pd.read_csv(path).to_dict("records")
    if form == "jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    return pq.read_table(path).to_pylist()


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_trials_are_written_with_a_column_for_each_parameter(
    form: str, call: Call, tmp_path: Path
) -> None:
    file = tmp_path / f"trials.{form}"
    options = ("--study", "digits", "--format", form, "--out", str(file))
    done = call("list", "trials", *options)
    assert (done.out, done.err) == ("", f"wrote {file}\n")
    rows = read_back(form, file)
    wanted = call("list", "trials", "--study", "digits", "--json").json
    keys = ("run_id", "trial_id", "device", "kind", "status", "steps", "final_metric")
    assert [[row[key] for key in keys] for row in rows] == [
        [r[key] for key in keys] for r in wanted
    ]
    found = [{k: v for k, v in row.items() if k.startswith("params.") and v == v} for row in rows]
    assert [{k: v for k, v in row.items() if v is not None} for row in found] == [
        {f"params.{name}": value for name, value in row["params"].items()} for row in wanted
    ]
    assert all("params" not in row for row in rows)


def test_parquet_has_types_and_as_many_rows_as_were_asked_for(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "few.parquet"
    asked = ("--where", "status=reached", "--top", "1", "--format", "parquet", "--out", str(file))
    call("list", "trials", "--study", "digits", *asked)
    table = pq.read_table(file)
    assert table["trial_id"].to_pylist() == ["t0004", "t0001", "t0001"]
    kinds = {name: str(table.schema.field(name).type) for name in table.column_names}
    assert kinds["steps"] == "int64" and kinds["time_to_target_s"] == "double"
    assert kinds["finished_at"] == "timestamp[ms, tz=UTC]"


def test_parameters_of_several_kinds_are_written_as_json(tmp_path: Path) -> None:
    values = [1, "auto", [0.5, 0.75], None]
    trials = [(f"run{k}", make_record(f"t000{k}", params={"a.b": v})) for k, v in enumerate(values)]
    write_parquet(trials_frame(trials), tmp_path / "mixed.parquet")
    found = pq.read_table(tmp_path / "mixed.parquet")["params.a.b"].to_pylist()
    assert [None if text is None else json.loads(text) for text in found] == values


@pytest.mark.parametrize(
    ("form", "beginning"), [("table", "certified"), ("json", "[\n"), ("markdown", "| trial_id |")]
)
def test_trials_are_written_in_every_other_form(
    form: str, beginning: str, call: Call, tmp_path: Path
) -> None:
    file = tmp_path / "trials.txt"
    call("list", "trials", "--study", "digits", "--format", form, "--out", str(file))
    text = file.read_text()
    assert beginning in text and "\x1b" not in text and "t0002" in text


def test_other_listings_are_written_too(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    call("list", "orders", "--format", "jsonl", "--out", str(file))
    assert {row["name"] for row in read_back("jsonl", file)} >= {"shuffle", "repeat_factor"}
    call("list", "orders", "--out", str(file))
    assert "repeat_factor" in file.read_text()
    out = call("list", "orders", "--format", "jsonl").out
    assert json.loads(out.splitlines()[0])["name"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("trials", "--study", "digits", "--format", "parquet"), "must go with --out FILE"),
        (("models", "--format", "parquet"), "must go with `list trials` and --out FILE"),
        (("models", "resnet20", "--out", "x"), "must go with a whole listing"),
        (("trials", "--study", "digits", "--out", "no/x.csv"), "a folder that exists"),
    ],
)
def test_what_cannot_be_written_is_wrong_input(
    call: Call, arguments: tuple[str, ...], told: str
) -> None:
    assert told in call("list", *arguments, code=2).err


def test_parquet_in_no_folder_is_wrong_input(call: Call) -> None:
    options = ("--study", "digits", "--format", "parquet", "--out", "no/x.parquet")
    assert "a folder that exists" in call("list", "trials", *options, code=2).err
