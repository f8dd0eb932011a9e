"""Searches whose MLflow server or database dies under them, and drivers that meet in a store."""

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from command import TINY_STUDY, Done, finished
from faulty_runs import Search, limits, one_each, searching, write_study
from kept import check_curves, runs_of_trials
from servers import MlflowServer, Postgresql, mlflow_server, postgresql, why_no_postgresql
from whole_searches import search_to_its_end

from tune_speed.tracking import open_store
from tune_speed.tracking.writer.runs import StudyRuns

pytestmark = pytest.mark.slow

needs_postgresql = pytest.mark.skipif(
    why_no_postgresql() is not None, reason=str(why_no_postgresql())
)
DELIVERED_SOON = limits({"tracking.writer.tracker.DELIVERY_S": 10})
"""Longest time for which a search waits for MLflow at its end, which is a minute by default."""


@pytest.fixture(scope="module")
def database() -> Iterator[Postgresql]:
    with postgresql() as server:
        server.run("postgres", "CREATE DATABASE direct", "CREATE DATABASE served")
        yield server


@pytest.fixture
def server(database: Postgresql, tmp_path: Path) -> Iterator[MlflowServer]:
    with mlflow_server(tmp_path / "server", backend_uri=database.uri("served")) as server:
        yield server


def wait_for_trials(search: Search, number: int, *, study: str = "tiny") -> None:
    search.wait_until(lambda: len(finished(search.folder, study)) >= number)


def wait_for_its_store(server: MlflowServer) -> None:
    """Waits until the server has found its database again."""
    place = f"{server.uri}/api/2.0/mlflow/experiments/search"
    asked = Request(place, b'{"max_results": 1}', {"Content-Type": "application/json"})
    with urlopen(asked, timeout=240) as answer:
        assert answer.status == 200


@needs_postgresql
def test_server_database_and_driver_are_killed_and_each_trial_is_there_once(
    tmp_path: Path, database: Postgresql, server: MlflowServer
) -> None:
    """The server dies and comes back; then the database dies behind it, and the driver with it."""
    write_study(tmp_path, model="slow_s: 0.05", trials=1000, concurrent=1)
    uri = database.uri("served")
    with searching(tmp_path, "tiny.yaml", **server.variables) as search:
        wait_for_trials(search, 2)
        server.kill()
        wait_for_trials(search, 4)
        search.wait_until(lambda: "trials go on" in search.err)
        server.start()
        search.wait_until(lambda: "MLflow answers again" in search.err)
        wait_for_trials(search, len(finished(tmp_path)) + 1)
        database.kill()
        wait_for_trials(search, len(finished(tmp_path)) + 2)
        search.named("bin/tune-speed")[0].kill()
        search.wait(within_s=10)
        assert search.left_after(30) == []
    database.start()
    before = {record["trial_id"]: record for record in finished(tmp_path)}
    in_mlflow = {run.trial_id for run in runs_of_trials(uri, "tiny") if run.status == "FINISHED"}
    assert set(before) - in_mlflow, "MLflow missed nothing"
    wait_for_its_store(server)
    more = ("--resume", "--trials", str(len(before) + 1))
    search_to_its_end(tmp_path, *more, **server.variables)
    after = finished(tmp_path)
    assert len(after) == len({record["trial_id"] for record in after}) == len(before) + 1
    assert before.items() <= {record["trial_id"]: record for record in after}.items()
    check_curves(uri, "tiny", after)


@needs_postgresql
def test_second_driver_is_refused_and_the_first_ends_in_time_without_its_store(
    tmp_path: Path, database: Postgresql, call: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is refused by the ledger in the same folder; by MLflow where the store is shared.

    The first took another name, as somebody else's study in the store has that of its file. Then
    its database dies for good, and it says what the store missed.
    """
    uri, name = database.uri("direct"), ("--set", "study=other")
    StudyRuns.open(open_store(uri), study="tiny", search_id="theirs", tags={}, is_only=True)
    # A trial that ends at once, and one that waits in its training until it is let go on.
    write_study(tmp_path, **one_each(("none", "waits")), concurrent=1, hang_after="600s")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for folder in (tmp_path, elsewhere):
        (folder / "plain.yaml").write_text(TINY_STUDY)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    soon = {**DELIVERED_SOON, "MLFLOW_TRACKING_URI": uri}
    with searching(tmp_path, "tiny.yaml", *name, **soon) as first:
        wait_for_trials(first, 1, study="other")
        for arguments in ((), ("--resume",)):
            second = call("search", "plain.yaml", *name, *arguments, folder=tmp_path)
            assert second.code == 2 and "but another one holds" in second.err, second.err
        third = call("search", "plain.yaml", *name, folder=elsewhere)
        assert third.code == 2 and "a study must have a name of its own in MLflow" in third.err
        assert "--set study=NAME" in third.err and finished(elsewhere, "other") == []
        assert "warning" not in first.err
        database.kill()
        (tmp_path / "faults" / "go").touch()
        code = first.wait(within_s=240)
        assert code in (0, 1), first.err
        assert first.left_after(20) == []
    missed = [record["trial_id"] for record in finished(tmp_path, "other")][-1]
    line = next(line for line in first.err.splitlines() if line.startswith("warning"))
    assert missed in line and "connection refused" in line and "--resume delivers" in line
    assert "s3cret" not in first.out + first.err and "Traceback" not in first.err
    database.start()
    search_to_its_end(tmp_path, *name, "--resume", MLFLOW_TRACKING_URI=uri)
    records = finished(tmp_path, "other")
    assert len(records) == 2
    check_curves(uri, "other", records)
