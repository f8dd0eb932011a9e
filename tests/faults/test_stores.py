"""Searches whose MLflow server or database dies under them, and drivers that meet in a store."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import TINY_STUDY, finished, run
from faulty_runs import Search, assert_unlocked, searching
from kept import check_curves, runs_of_trials
from servers import MlflowServer, Postgresql, mlflow_server, postgresql, why_no_postgresql
from whole_searches import search_to_its_end

pytestmark = pytest.mark.slow

needs_postgresql = pytest.mark.skipif(
    why_no_postgresql() is not None, reason=str(why_no_postgresql())
)
DELIVERY_S = 60.0
"""Longest time for which a search waits for MLflow at its end."""


@pytest.fixture(scope="module")
def database() -> Iterator[Postgresql]:
    with postgresql() as server:
        server.run("postgres", "CREATE DATABASE direct", "CREATE DATABASE served")
        yield server


@pytest.fixture
def server(database: Postgresql, tmp_path: Path) -> Iterator[MlflowServer]:
    with mlflow_server(tmp_path / "server", backend_uri=database.uri("served")) as server:
        yield server


def write_study(folder: Path, *, trials: int) -> None:
    """Trials of some seconds each, so that there is always one that runs."""
    text = TINY_STUDY.replace("trials: 6", f"trials: {trials}")
    (folder / "tiny.yaml").write_text(text.replace("high: 10}", "high: 40}"))


def wait_for_trials(search: Search, number: int) -> None:
    search.wait_until(lambda: len(finished(search.folder)) >= number, within_s=240)


@needs_postgresql
def test_server_database_and_driver_are_killed_and_each_trial_is_there_once(
    tmp_path: Path, database: Postgresql, server: MlflowServer
) -> None:
    write_study(tmp_path, trials=1000)  # More than end while servers start.
    uri = database.uri("served")
    with searching(tmp_path, "tiny.yaml", **server.variables) as search:
        wait_for_trials(search, 2)
        server.kill()
        wait_for_trials(search, 4)
        search.wait_until(lambda: "trials go on" in search.err)
        database.restart()  # With `kill -9`.
        server.start()
        search.wait_until(lambda: "MLflow answers again" in search.err)
        wait_for_trials(search, len(finished(tmp_path)) + 2)
        server.kill()
        wait_for_trials(search, len(finished(tmp_path)) + 2)
        search.named("bin/tune-speed")[0].kill()
        search.wait(within_s=10)
        assert search.left_after(30) == []
    before = {record["trial_id"]: record for record in finished(tmp_path)}
    in_mlflow = {run.trial_id for run in runs_of_trials(uri, "tiny") if run.status == "FINISHED"}
    assert set(before) - in_mlflow, "MLflow missed nothing"
    server.start()
    more = ("--resume", "--trials", str(len(before) + 1))
    search_to_its_end(tmp_path, *more, **server.variables)
    after = finished(tmp_path)
    assert len(after) == len({record["trial_id"] for record in after}) == len(before) + 1
    assert before.items() <= {record["trial_id"]: record for record in after}.items()
    check_curves(uri, "tiny", after)


@needs_postgresql
def test_search_whose_store_never_comes_back_ends_in_time_and_says_what_it_missed(
    tmp_path: Path, database: Postgresql
) -> None:
    write_study(tmp_path, trials=4)
    uri = database.uri("direct")
    with searching(tmp_path, "tiny.yaml", MLFLOW_TRACKING_URI=uri) as search:
        wait_for_trials(search, 1)
        database.kill()
        wait_for_trials(search, 4)
        began = time.monotonic()
        code = search.wait(within_s=DELIVERY_S + 120)
        print(f"ended {time.monotonic() - began:.0f} s after its last trial")
        assert code in (0, 1), search.err
        assert search.left_after(20) == []
        missed = [r["trial_id"] for r in finished(tmp_path)][-1]
        line = next(line for line in search.err.splitlines() if line.startswith("warning"))
        assert missed in line and "connection refused" in line and "--resume delivers" in line
        assert "s3cret" not in search.out + search.err and "Traceback" not in search.err
    database.start()
    search_to_its_end(tmp_path, "--resume", MLFLOW_TRACKING_URI=uri)
    check_curves(uri, "tiny", finished(tmp_path))


def test_second_driver_of_a_study_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    """By the ledger in the same folder; by MLflow where only the store is shared."""
    write_study(tmp_path, trials=200)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_study(elsewhere, trials=200)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with searching(tmp_path, "tiny.yaml") as first:
        wait_for_trials(first, 1)
        second = run("search", "tiny.yaml", "--resume", folder=tmp_path)
        assert second.code == 2 and "but another one holds" in second.err, second.err
        other = run("search", "tiny.yaml", folder=elsewhere, MLFLOW_TRACKING_URI=uri)
        assert other.code == 2 and "a study must have a name of its own in MLflow" in other.err
        assert "--set study=NAME" in other.err and finished(elsewhere) == []
        wait_for_trials(first, len(finished(tmp_path)) + 2)
        first.named("bin/tune-speed")[0].kill()
        first.wait(within_s=10)
        assert first.left_after(30) == []
    assert_unlocked(tmp_path)
    number = len(finished(tmp_path))
    search_to_its_end(tmp_path, "--resume", "--trials", str(number + 1))
    records = finished(tmp_path)
    assert len(records) == number + 1
    check_curves(uri, "tiny", records)
    renamed = ("--set", "study=other", "--trials", "1")
    done = run("search", "tiny.yaml", *renamed, folder=elsewhere, MLFLOW_TRACKING_URI=uri)
    assert done.code in (0, 1), done.err
    check_curves(uri, "other", finished(elsewhere, "other"))
