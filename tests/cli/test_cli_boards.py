"""`best` and `leaderboard` over a real store with two studies on two devices."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_record, make_run

from tune_speed.core.records import Status, TrialRecord
from tune_speed.reporting.leaderboard.history import record_history
from tune_speed.reporting.leaderboard.queries import choices_of
from tune_speed.reporting.leaderboard.ranking import make_boards
from tune_speed.study.file import parse_recipe
from tune_speed.tracking import Store, Tracker, find_trials

CPU, GPU = "cpu (1 threads, test)", "NVIDIA H200"
RECIPE = {"model": {"resnet20": {}}, "epochs": 2.0}
Call = Callable[..., Any]


def trial(number: int, time_s: float, **fields: Any) -> TrialRecord:
    optimizer = ("sgd", "adamw")[number % 2]
    made = make_record(
        f"t{number:04d}", time_s=time_s, params={"optimizer": optimizer, "n": number}, **fields
    )
    finished_at = f"2026-01-01T00:{number:02d}:00.000+00:00"
    recipe = {**RECIPE, "optimizer": {optimizer: {"lr": 0.1}}, "batch_size": 32}
    return made.model_copy(update={"recipe": recipe, "finished_at": finished_at})


def records() -> Iterator[TrialRecord]:
    for number, time_s in enumerate([4.0, 2.0, 2.0]):
        yield trial(number, time_s, study="on-cpu", device=CPU)
    yield trial(3, 1.0, study="on-cpu", device=CPU, status=Status.MISSED)
    yield trial(0, 0.5, study="on-gpu", device=GPU)
    yield trial(1, 0.4, study="on-gpu", device=GPU, status=Status.OOM)
    runs = tuple(make_run(time_s=3.0 + i / 10, seed=i) for i in range(6))
    yield trial(0, 3.0, study="on-cpu", device=CPU, runs=runs, kind="certified")


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    uri = f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"
    parts = (("on-cpu", "estimate"), ("on-gpu", "estimate"), ("on-cpu", "certified"))
    for study, kind in parts:
        parent = {"search_id": "1", "parent_kind": "certification"} if kind == "certified" else {}
        tracker = Tracker(Store(uri), study=study, study_tags={}, linger_s=0.02, **parent)
        mine = [r for r in records() if (r.study, r.kind) == (study, kind)]
        tracker.reconcile({record.trial_id: record for record in mine})
        assert tracker.close(timeout_s=30) == ()
    return uri


@pytest.fixture
def call(call: Call, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs a command over the store: `call(*arguments, code=0)` returns stdout, then stderr."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)

    def run(*arguments: str, code: int = 0) -> str:
        done: Any = call(*arguments, folder=tmp_path)
        assert done.code == code, done.err
        return str(done.out + done.err)

    return run


def test_devices_are_never_ranked_together(call: Call) -> None:
    boards = json.loads(call("leaderboard", "--workload", "digits", "--json"))
    assert [(board["device"], board["kind"]) for board in boards] == [
        (GPU, "estimate"),
        (CPU, "certified"),
        (CPU, "estimate"),
    ]
    assert [[row["rank"] for row in board["rows"]] for board in boards] == [[1], [1], [1, 1, 3]]


def test_leading_rows_are_those_of_a_board_of_all_trials(call: Call, uri: str) -> None:
    trials = [(found.run_id, found.record) for found in find_trials(Store(uri))]
    whole = [board.model_dump(mode="json") for board in make_boards(trials, top=2)]
    assert json.loads(call("leaderboard", "--top", "2", "--json")) == whole


def test_the_only_row_shown_says_that_it_is_tied(call: Call) -> None:
    (board,) = json.loads(call("best", "--study", "on-cpu", "--kind", "estimate", "--json"))
    assert [(row["rank"], row["tied"]) for row in board["rows"]] == [(1, True)]
    assert (board["trials"], board["reached"]) == (4, 3)


def test_misses_stand_at_the_end_without_a_rank(call: Call) -> None:
    (board,) = json.loads(call("leaderboard", "--misses", "--device", "h200", "--json"))
    assert [(row["rank"], row["status"]) for row in board["rows"]] == [
        (1, "reached"),
        (None, "oom"),
    ]


def test_best_of_a_choice_keeps_the_best_row_of_each_with_its_rank(call: Call) -> None:
    options = ("leaderboard", "--device", "cpu", "--kind", "estimate", "--json")
    (every,) = json.loads(call(*options))
    (best,) = json.loads(call(*options, "--best-of", "optimizer"))
    assert [row["params"]["optimizer"] for row in every["rows"]] == ["adamw", "sgd", "sgd"]
    assert best == {**every, "rows": every["rows"][:2]}
    assert (
        json.loads(call(*options, "--best-of", "optimizer", "--top", "1"))[0]["rows"]
        == (every["rows"][:1])
    )
    refused = call("leaderboard", "--best-of", "optimiser", code=2)
    assert "--best-of must name a choice that was searched" in refused
    assert "did you mean `optimizer`" in refused.lower()
    assert "without --best-of" in call("leaderboard", "--history", "--best-of", "n", code=2)


def test_choices_below_a_choice_count_and_numbers_do_not() -> None:
    params = {
        "model": "timm",
        "model.timm.name": "lcnet_050",
        "models": "x",
        "model.timm.drop": 0.1,
    }
    assert choices_of(params, "model") == (("model", "timm"), ("model.timm.name", "lcnet_050"))
    assert choices_of({"model": "resnet20", "lr": 0.1}, "model") == (("model", "resnet20"),)


def test_filter_ranks_and_counts_what_it_holds_for(call: Call) -> None:
    shown = call("leaderboard", "--where", "optimizer=sgd", "--kind", "estimate", "--json")
    gpu, cpu = json.loads(shown)
    assert [row["trial_id"] for row in cpu["rows"]] == ["t0002", "t0000"]
    assert (cpu["where"], cpu["trials"], gpu["trials"]) == ("optimizer=sgd", 2, 1)


def test_filter_that_cannot_be_read_shows_the_place(call: Call) -> None:
    lines = call("leaderboard", "--where", "optimizer==", code=2).splitlines()
    assert lines[2].index("^") - lines[1].index("o") == len("optimizer==")


@pytest.mark.parametrize("name", ["optimizzer", "optimizer.sgd.lrr"])
def test_filter_on_a_field_that_no_trial_has_is_refused(call: Call, name: str) -> None:
    assert name in call("leaderboard", "--where", f"{name}=1", code=2)


def test_history_has_the_records_of_each_board(call: Call, uri: str) -> None:
    held = json.loads(call("leaderboard", "--history", "--json"))
    expected = record_history(found.record for found in find_trials(Store(uri)))
    assert held == [record.model_dump(mode="json") for record in expected]
    of_cpu = ("--study", "on-cpu", "--kind", "estimate")
    (latest,) = json.loads(call("leaderboard", "--history", *of_cpu, "--top", "1", "--json"))
    assert latest["trial_id"] == "t0001"
    on_cpu = [r["trial_id"] for r in held if (r["device"], r["kind"]) == (CPU, "estimate")]
    assert on_cpu == ["t0000", "t0001"]


@pytest.mark.parametrize("option", [(), ("--history",)])
@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_every_form_names_every_study_and_goes_to_a_file_too(
    call: Call, tmp_path: Path, form: str, option: tuple[str, ...]
) -> None:
    shown = call("leaderboard", *option, "--format", form)
    assert "on-cpu" in shown and "on-gpu" in shown
    call("leaderboard", *option, "--format", form, "--out", "board")
    assert (tmp_path / "board").read_text().strip() == shown.strip()


def test_html_is_a_page_of_the_boards_and_of_no_history(call: Call, tmp_path: Path) -> None:
    call("leaderboard", "--format", "html", "--out", "boards.html")
    page = (tmp_path / "boards.html").read_text()
    assert page.lower().startswith("<!doctype html>") and "on-gpu" in page
    assert "without --misses" in call("leaderboard", "--history", "--misses", code=2)
    assert "must be shown as table" in call("leaderboard", "--history", "--format", "html", code=2)


def test_export_refuses_to_choose_between_devices(call: Call, tmp_path: Path) -> None:
    told = call("best", "--kind", "estimate", "--export", "best.yaml", code=2)
    assert CPU in told and GPU in told and "--device" in told
    assert not (tmp_path / "best.yaml").exists()


def test_export_takes_the_fastest_of_the_device_and_says_what_it_is(
    call: Call, tmp_path: Path
) -> None:
    call("best", "--device", "H200", "--export", "best.yaml")
    text = (tmp_path / "best.yaml").read_text()
    file = parse_recipe(text, file="best.yaml")
    assert (file.name, file.run.device) == ("on-gpu", "cuda")
    for part in ("on-gpu/t0000", "0.500 s", GPU, "2 trials", "tune-speed train best.yaml"):
        assert part in text.split("study:")[0]


def test_export_prefers_what_is_certified(call: Call, tmp_path: Path) -> None:
    call("best", "--study", "on-cpu", "--export", "best.yaml")
    header = (tmp_path / "best.yaml").read_text().split("study:")[0]
    assert "certified: 6 of 6 runs met the target" in header
    assert "4 trials" in header


def test_export_of_a_filtered_row_has_the_cost_of_the_whole_search(
    call: Call, tmp_path: Path
) -> None:
    where = "study=on-cpu and kind=estimate and optimizer=adamw and status=reached"
    assert json.loads(call("best", "--where", where, "--json"))[0]["trials"] == 1
    call("best", "--where", where, "--export", "best.yaml")
    assert "found in a search of 4 trials" in (tmp_path / "best.yaml").read_text()


def test_no_row_is_exit_code_1(call: Call) -> None:
    assert "No trial" in call("best", "--device", "abacus", code=1)
