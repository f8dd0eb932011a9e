"""What a user does in the first hour, for real: search, a driver that is killed, resume, certify.

Of whole searches, the only one in the fast set: it tells whether this copy works on this machine.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.command import TINY_STUDY, Done, finished, ledger, mlflow_runs, run_inside, start

from tune_speed import Results
from tune_speed.core.records import NOT_CERTIFIED

TRIALS = 3
CERTIFY = ("--top", "1", "--seeds", "2", "--final", "1", "--final-seeds", "2")
Call = Callable[..., Done]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> Path:
    """A folder whose search was killed after its first trial, by `kill -9` of the driver."""
    folder = tmp_path_factory.mktemp("first_hour")
    text = TINY_STUDY.replace("trials: 6", f"trials: {TRIALS}").replace("value: 0.8", "value: 0.4")
    text = text.replace("{low: 1, high: 10}", "{low: 6, high: 10}")  # Certified runs hit again.
    (folder / "tiny.yaml").write_text(text)
    os.environ["TUNE_SPEED_CACHE"] = str(session_cache)
    process = start("search", "tiny.yaml", folder=folder)
    deadline = time.monotonic() + 240
    while not finished(folder):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    (folder / "before").write_text((folder / "tune_speed_studies/tiny/ledger.jsonl").read_text())
    return folder


@pytest.fixture(scope="module")
def resumed(killed: Path) -> Path:
    done = run_inside("search", "tiny.yaml", "--resume", folder=killed)
    assert done.code == 0, done.err
    assert f"{TRIALS} trials: " in done.out
    return killed


@pytest.fixture(scope="module")
def certified(resumed: Path) -> Path:
    done = run_inside("certify", "tiny", *CERTIFY, folder=resumed)
    assert done.code in (0, 1), done.err  # 1: others disturbed it.
    return resumed


def test_resumed_search_loses_and_repeats_nothing(resumed: Path) -> None:
    before = (resumed / "before").read_text()
    assert (resumed / "tune_speed_studies/tiny/ledger.jsonl").read_text().startswith(before)
    names = [f"t{number:04}" for number in range(TRIALS)]
    assert sorted(record["trial_id"] for record in finished(resumed)) == names
    proposed = [e["trial_id"] for e in ledger(resumed) if e["event"] == "proposed"]
    assert proposed.count("t0000") == 1  # It had ended; the one that was cut off runs again.
    assert mlflow_runs(resumed) == [(name, "FINISHED") for name in names]


def test_board_has_every_configuration_that_met_the_target(resumed: Path, call: Call) -> None:
    hits = Counter[str]()
    for record in finished(resumed):
        hits[str(sorted(record["params"].items()))] += record["status"] == "reached"
    [board] = [
        board
        for board in call("leaderboard", "--study", "tiny", "--json", folder=resumed).json
        if board["kind"] == "estimate"
    ]
    found = {str(sorted(row["params"].items())): row["hits"] for row in board["rows"]}
    assert found and found == +hits
    assert all(row["n"] >= row["hits"] for row in board["rows"])
    assert board["recommended"]["trial_id"] == board["rows"][0]["trial_id"]


def test_certified_row_ran_on_fresh_seeds_alone(certified: Path, call: Call) -> None:
    boards = call("leaderboard", "--study", "tiny", "--json", folder=certified).json
    [[row]] = [board["rows"] for board in boards if board["kind"] == "certified"]
    timings = set(row["timing"].split(", "))
    assert timings <= {"exclusive", "disturbed"} and row["n"] == 2
    assert row["verification"] == (NOT_CERTIFIED if "disturbed" in timings else "re-timed")
    searched = {run["seed"] for record in finished(certified) for run in record["runs"]}
    shown = call("show", f"tiny/{row['trial_id']}@certified", "--json", folder=certified).json
    assert not searched & {run["seed"] for run in shown["runs"]}


def test_results_are_read_from_mlflow_as_the_ledger_has_them(
    certified: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{certified}/mlflow.db")
    trials = Results().trials("tiny")
    estimates = trials[trials.kind == "estimate"].set_index("trial_id")
    for record in finished(certified):
        assert estimates.loc[record["trial_id"], "status"] == record["status"]
