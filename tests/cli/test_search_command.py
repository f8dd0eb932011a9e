"""`tune-speed search` as a user runs it: real Ray, real MLflow, real trainings of a second."""

import io
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow
import pyarrow.parquet
import pytest
from helpers.command import TINY_STUDY, Done, finished, ledger, mlflow_runs, run, run_inside, start
from helpers.processes import command_of
from numpy.typing import NDArray
from PIL import Image

pytestmark = pytest.mark.slow

TRIALS = 4
STUDY = TINY_STUDY.replace("trials: 6", f"trials: {TRIALS}")
TIME_TO_TARGET = ["--set", "search.policy=time_to_target"]
Call = Callable[..., Done]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> Path:
    os.environ["TUNE_SPEED_CACHE"] = str(session_cache)
    folder = tmp_path_factory.mktemp("searched")
    (folder / "tiny.yaml").write_text(STUDY)
    done = run_inside("search", "tiny.yaml", folder=folder)
    (folder / "out").write_text(done.out)
    (folder / "err").write_text(done.err)
    assert done.code == 0, done.err
    return folder


def wait_for(condition: Callable[[], object], *, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)


def write_study(folder: Path, **changes: str) -> str:
    text = STUDY
    for old, new in changes.items():
        text = text.replace(old, new)
    (folder / "tiny.yaml").write_text(text)
    return "tiny.yaml"


def test_search_ends_with_a_leaderboard_and_where_to_go_from_there(searched: Path) -> None:
    out = (searched / "out").read_text()
    assert "accuracy ≥ 0.8" in out
    assert "tiny/t000" in out
    assert f"{TRIALS} trials: " in out
    assert f"results:  {searched}/tune_speed_studies/tiny" in out
    assert "tune-speed best --study tiny --export best.yaml && tune-speed train best.yaml" in out
    assert f"mlflow ui --backend-store-uri sqlite:///{searched}/mlflow.db" in out


def test_progress_goes_to_stderr_with_a_line_a_trial(searched: Path) -> None:
    lines = (searched / "err").read_text().splitlines()
    assert [line[:5] for line in sorted(lines) if line.startswith("t0")] == [
        f"t000{i}" for i in range(TRIALS)
    ]


def test_each_trial_is_in_mlflow_once_and_ended(searched: Path) -> None:
    assert mlflow_runs(searched) == [(f"t000{i}", "FINISHED") for i in range(TRIALS)]


def test_some_trials_meet_the_target_and_some_miss(searched: Path) -> None:
    assert {record["status"] for record in finished(searched)} == {"reached", "missed"}


def test_trial_processes_are_reused(searched: Path) -> None:
    """All trials run in one process: only its first trial grows from nothing."""
    setups = sorted(r["runs"][0]["clocks"]["setup_s"] for r in finished(searched))
    assert setups[-2] < 1.0


def test_exported_winner_trains_to_the_same_accuracy(searched: Path, call: Call) -> None:
    best = call("best", "--study", "tiny", "--export", "best.yaml", "--json", folder=searched)
    row = best.json[0]["rows"][0]
    trained = call("train", "best.yaml", "--json", folder=searched)
    again = trained.json["runs"][0]["evaluations"][-1]
    assert again["accuracy"] == row["final_metric"]
    record = next(r for r in finished(searched) if r["trial_id"] == row["trial_id"])
    assert again["loss"] == record["runs"][0]["evaluations"][-1]["loss"]


def test_run_id_trains_like_the_file(searched: Path, call: Call) -> None:
    row = call("best", "--json", folder=searched).json[0]["rows"][0]
    trained = call("train", row["run_id"], "--json", folder=searched)
    assert trained.json["runs"][0]["evaluations"][-1]["accuracy"] == row["final_metric"]


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_leaderboard_in_each_format_names_the_winner(searched: Path, call: Call, form: str) -> None:
    winner = call("best", "--json", folder=searched).json[0]["rows"][0]["trial_id"]
    done = call("leaderboard", "--study", "tiny", "--format", form, folder=searched)
    assert done.code == 0
    assert winner in done.out


def test_filters_that_match_nothing_say_so(searched: Path, call: Call) -> None:
    done = call("best", "--device", "H200", folder=searched)
    assert (done.code, "No trial met its target yet" in done.out) == (1, True)


def test_show_tells_recipe_curve_and_clocks(searched: Path, call: Call) -> None:
    done = call("show", "tiny/t0003", folder=searched)
    assert done.code == 0
    for part in ("train_s", "macro_f1", "resnet20", "peak memory", "torch="):
        assert part in done.out


def test_existing_study_needs_resume(searched: Path, call: Call) -> None:
    done = call("search", "tiny.yaml", folder=searched)
    assert done.code == 2
    assert "study tiny exists, with 4 finished trials" in done.err
    assert "--resume" in done.err


def test_study_with_another_space_is_refused(searched: Path, call: Call) -> None:
    done = call("search", "tiny.yaml", "--resume", "--set", "epochs=3", folder=searched)
    assert done.code == 2
    assert "study tiny must keep its search space" in done.err


def test_show_says_why_a_trial_was_tried(searched: Path, call: Call) -> None:
    record = finished(searched)[0]
    assert record["proposal_reason"]
    done = call("show", f"tiny/{record['trial_id']}", folder=searched)
    assert f"proposed because {record['proposal_reason']}" in done.out


def test_lost_ledger_is_rebuilt_from_mlflow_and_the_search_goes_on(
    searched: Path, tmp_path: Path
) -> None:
    before = finished(searched)
    shutil.copy(searched / "tiny.yaml", tmp_path)
    # A plain copy would open and close the file, which frees the locks that SQLite has on it in
    # this process: it was damaged so. Files of artifacts stay where they are.
    with (
        closing(sqlite3.connect(searched / "mlflow.db")) as theirs,
        closing(sqlite3.connect(tmp_path / "mlflow.db")) as ours,
    ):
        theirs.backup(ours)
    lost = run_inside("search", "tiny.yaml", "--resume", folder=tmp_path)
    assert lost.code == 2 and "rebuild it with --resume --from-mlflow" in lost.err
    anew = run_inside("search", "tiny.yaml", folder=tmp_path)
    assert anew.code == 2 and "rebuild its ledger here with --resume --from-mlflow" in anew.err
    more = ("--trials", str(TRIALS + 1))
    done = run_inside("search", "tiny.yaml", "--from-mlflow", *more, folder=tmp_path)
    assert done.code == 0, done.err
    assert f"rebuilt the ledger from MLflow: {TRIALS} finished trials" in done.err
    now = finished(tmp_path)
    by_trial = itemgetter("trial_id")
    assert sorted(now[:TRIALS], key=by_trial) == sorted(before, key=by_trial)
    assert mlflow_runs(tmp_path) == [(f"t000{i}", "FINISHED") for i in range(TRIALS + 1)]


@pytest.fixture(scope="module")
def warmed(searched: Path) -> Done:
    """What a search said that began with the trials of the first, and ended with its time budget.

    Two trials begin at once, so its points to evaluate are proposed before the budget is over.
    """
    (searched / "warm.yaml").write_text(TINY_STUDY.replace("value: 0.8", "value: 0.82"))
    points = "search.points_to_evaluate=[{epochs: 2}, {batch_size: 25, epochs: 1}]"
    own = [*TIME_TO_TARGET, "--set", "study=warm", "--set", "search.warm_start=[tiny]"]
    ends = ["--concurrent", "2", "--trials", "1000", "--time-budget", "1s"]
    done = run_inside("search", "warm.yaml", *own, "--set", points, *ends, folder=searched)
    assert done.code in (0, 1), done.err
    return done


def test_another_target_starts_with_what_was_learned(searched: Path, warmed: Done) -> None:
    """The earlier trials' curves and, on the same machine, their times carry over; no leader."""
    number = len(finished(searched))
    said = f"warm start: {number} of {number} trials of tiny carry over, {number} of them with"
    assert said in warmed.err
    events = ledger(searched, "warm")
    assert [event["event"] for event in events[:3]] == ["study", "warm_start", "proposed"]
    assert len(events[1]["trials"]) == number


def test_unknown_study_to_learn_from_is_refused_before_anything_runs(
    searched: Path, call: Call
) -> None:
    own = [*TIME_TO_TARGET, "--set", "study=warmer", "--set", "search.warm_start=[tinny]"]
    done = call("search", "tiny.yaml", *own, folder=searched)
    assert (done.code, "Traceback" in done.err) == (2, False), done.err
    assert "Did you mean `tiny`?" in done.err
    assert ledger(searched, "warmer") == []


def test_password_of_a_storage_is_kept_from_files_and_terminal(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    url = "search.storage=postgresql://me:s3cret@127.0.0.1:9/db"
    own = [*TIME_TO_TARGET, "--set", url, "--trials", "1"]
    done = run("search", study, *own, folder=tmp_path)
    assert "s3cret" not in done.out + done.err
    kept = [*(tmp_path / "tune_speed_studies").rglob("*"), tmp_path / "mlflow.db"]
    assert not any(b"s3cret" in path.read_bytes() for path in kept if path.is_file())


def test_points_to_evaluate_are_the_first_trials(searched: Path, warmed: Done) -> None:
    events = ledger(searched, "warm")
    proposed = [event["params"] for event in events if event["event"] == "proposed"]
    assert proposed[0]["epochs"] == 2
    assert (proposed[1]["epochs"], proposed[1]["batch_size"]) == (1, 25)


def test_time_budget_ends_the_search_and_leaves_nothing_running(
    searched: Path, warmed: Done
) -> None:
    events = ledger(searched, "warm")
    ended = [e["trial_id"] for e in events if e["event"] == "interrupted"]
    ended += [record["trial_id"] for record in finished(searched, "warm")]
    assert sorted(ended) == sorted(e["trial_id"] for e in events if e["event"] == "proposed")
    assert 0 < len(ended) < 1000
    assert {status for _, status in mlflow_runs(searched)} <= {"FINISHED", "KILLED"}
    children = psutil.Process().children(recursive=True)
    of_ray = [child for child in children if "ray" in command_of(child)]
    assert psutil.wait_procs(of_ray, timeout=20)[1] == []


def test_resume_runs_only_new_trials_until_sigterm_stops_it(searched: Path) -> None:
    """SIGTERM becomes the signal of Ctrl-C: all that follows one follows the other."""
    before = finished(searched)
    more = ("search", "tiny.yaml", "--trials", "200")
    process = start(*more, "--resume", folder=searched)
    wait_for(lambda: len(finished(searched)) > len(before), process=process)
    ends_cleanly(process, folder=searched, again=f"{' '.join(more)} --resume")
    after = finished(searched)
    assert after[: len(before)] == before
    names = [record["trial_id"] for record in after]
    assert names == [f"t{number:04}" for number in range(len(after))]
    delivered = {name for name, status in mlflow_runs(searched) if status == "FINISHED"}
    assert sorted(delivered) == names


def ends_cleanly(process: subprocess.Popen[str], *, folder: Path, again: str) -> None:
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"{len(finished(folder))} trials: " in out
    assert f"tune-speed {again}" in err
    at_once = re.search(r"^stopping \d+ trials?, which --resume runs again …$", err, re.MULTILINE)
    assert at_once, err
    assert "interrupted" not in err[: at_once.start()]
    assert "Traceback" not in err
    statuses = {status for _, status in mlflow_runs(folder)}
    assert statuses <= {"FINISHED", "KILLED"}
    _, alive = psutil.wait_procs(children, timeout=20)
    assert alive == []


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> Path:
    """A folder of a search of images of its own, of whose four trials three go wrong."""
    os.environ["TUNE_SPEED_CACHE"] = str(session_cache)
    folder = tmp_path_factory.mktemp("troubled")
    write_images(folder / "data")
    choices = "model: {choices: {resnet20: {}, resnet: {weights_file: damaged.pt}}}"
    (folder / "damaged.pt").write_text("no weights")
    dataset = "{name: image_parquet, train: data/train.parquet, test: data/test.parquet}"
    study = write_study(
        folder,
        **{
            "{name: digits}": dataset,
            "train_samples: 300, validation_samples: 100": "seed: 0",
            "model: resnet20": choices,
            "lr: {low: 0.02, high: 0.4, log: true}": "lr: {choices: [0.1, 1.0e+30]}",
            "epochs: {low: 1, high: 10}": "epochs: 4",
            "batch_size: {choices: [25, 50]}": "batch_size: 50",
            "policy: random": "sampler: grid",
        },
    )
    done = run_inside("search", study, folder=folder)
    assert "Traceback" not in done.err
    return folder


def write_images(folder: Path) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for part, number in (("train", 200), ("test", 40)):
        labels = np.arange(number) % 2
        pixels = (
            rng.integers(0, 100, (number, 8, 8, 3), np.uint8) + 100 * labels[:, None, None, None]
        )
        images = [{"bytes": png(image), "path": ""} for image in pixels.astype(np.uint8)]
        table = pyarrow.table({"img": images, "label": labels})
        pyarrow.parquet.write_table(table, folder / f"{part}.parquet")


def png(pixels: NDArray[np.uint8]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def sound(folder: Path) -> dict[str, Any]:
    [record] = [r for r in finished(folder) if r["status"] not in ("failed", "diverged")]
    return record


def test_crashed_and_diverged_trials_are_recorded_and_the_search_goes_on(troubled: Path) -> None:
    by_model = {
        (next(iter(r["recipe"]["model"])), r["params"]["optimizer.sgd.lr"]): r
        for r in finished(troubled)
    }
    assert len(by_model) == 4
    for lr in (0.1, 1e30):
        crashed = by_model["resnet", lr]
        assert crashed["status"] == "failed"
        assert "Traceback" in crashed["runs"][0]["traceback"]
    diverged = by_model["resnet20", 1e30]
    assert diverged["status"] == "diverged"
    assert "loss is not finite" in diverged["runs"][0]["stop_reason"]
    assert by_model["resnet20", 0.1]["status"] in ("reached", "missed")
    assert {status for _, status in mlflow_runs(troubled)} == {"FINISHED", "FAILED"}


def test_data_at_a_relative_path_is_found_by_trial_processes(
    troubled: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's processes run in folders of their own, and so may who trains a trial again."""
    trial_id = sound(troubled)["trial_id"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{troubled}/mlflow.db")
    trained = call("train", f"tiny/{trial_id}", folder=tmp_path)
    assert trained.code in (0, 1), trained.err


def test_technique_that_does_not_fit_is_refused_before_any_trial(
    tmp_path: Path, call: Call
) -> None:
    technique = "model: plain_cnn\n  speedups: {depth: {choices: {off: , stochastic_depth: }}}"
    text = TINY_STUDY.replace("model: resnet20", technique)
    (tmp_path / "tiny.yaml").write_text(text)
    done = call("search", "tiny.yaml", folder=tmp_path)
    assert done.code == 2
    line = 1 + text.splitlines().index(technique.splitlines()[1])
    assert f"tiny.yaml:{line}: recipe.speedups.depth.stochastic_depth: must have" in done.err
    assert finished(tmp_path) == []
