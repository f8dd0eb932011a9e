"""A search whose database dies under it, and drivers that meet in a store."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_runs import Search, assert_unlocked, limits, one_each, searching, write_study
from helpers.command import TINY_STUDY, Done, finished
from helpers.tracking.servers import Postgresql, postgresql, why_no_postgresql
from helpers.tracking.stores import check_curves, runs_of_trials

from tune_speed.tracking import Store
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
        server.run("postgres", "CREATE DATABASE direct")
        yield server


def wait_for_trials(search: Search, number: int, *, study: str = "tiny") -> None:
    search.wait_until(lambda: len(finished(search.folder, study)) >= number)


@needs_postgresql
def test_second_driver_is_refused_and_a_store_that_is_away_misses_no_trial_in_the_end(
    tmp_path: Path, database: Postgresql, call: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is refused by the ledger in the same folder; by MLflow where the store is shared.

    The first took another name, as somebody else's study in the store has that of its file. Then
    its database dies for good, and it says what the store missed. Under the search that goes on,
    which delivers that, it dies and comes back.
    """
    uri, name = database.uri("direct"), ("--set", "study=other")
    StudyRuns.open(Store(uri), study="tiny", search_id="theirs", tags={}, is_only=True)
    # A trial that ends at once, and one that waits in its training until it is let go on.
    points = one_each(("none", "waits"), concurrent=1, hang_after="600s")
    write_study(tmp_path, **{**points, "model": f"{points['model']}, slow_s: 0.05"})
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
            assert second.code == 2 and "other" in second.err, second.err
        third = call("search", "plain.yaml", *name, folder=elsewhere)
        assert third.code == 2 and "--set study=NAME" in third.err, third.err
        assert finished(elsewhere, "other") == []
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
    before = finished(tmp_path, "other")
    assert len(before) == 2
    database.start()
    assert {run.trial_id for run in runs_of_trials(uri, "other") if run.status == "FINISHED"} == {
        record["trial_id"] for record in before
    } - {missed}
    with searching(tmp_path, "tiny.yaml", *name, "--resume", "--trials", "9", **soon) as search:
        wait_for_trials(search, 3, study="other")
        database.kill()
        search.wait_until(lambda: "trials go on" in search.err)
        wait_for_trials(search, len(finished(tmp_path, "other")) + 1, study="other")
        database.start()
        search.wait_until(lambda: "MLflow answers again" in search.err)
        assert search.wait(within_s=240) in (0, 1), search.err
        assert "Traceback" not in search.err
        assert search.left_after(20) == []
    assert_unlocked(tmp_path)
    after = finished(tmp_path, "other")
    assert after[:2] == before and len({record["trial_id"] for record in after}) == 9
    check_curves(uri, "other", after)
