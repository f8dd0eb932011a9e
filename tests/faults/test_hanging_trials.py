"""Trials that do nothing any more: the watchdog ends them, and says where they were."""

from pathlib import Path
from typing import Any

import pytest
from faulty_runs import (
    Search,
    assert_each_once,
    assert_unlocked,
    by_fault,
    one_each,
    run_of,
    searched,
    write_study,
)

pytestmark = pytest.mark.slow

SHOWN = {"deadlock": "in deadlock", "stops_loader": "worker_pool.py"}
"""What the stacks of a trial that hangs must hold, where the process can still tell."""
SILENT = ("keeps_lock", "stops")
"""The interpreter's lock is never let go; the process is stopped by a signal."""
FAULTS = (*SILENT, *SHOWN, "none")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> Search:
    """A search in which a trial hung in each way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        folder = tmp_path_factory.mktemp("hanging")
        # Most of the time is spent waiting; more at once would start too slowly.
        own = one_each(FAULTS, attempts=1, hang_after="25s", concurrent=3)
        resources = "{cpu: 0.5}"
        write_study(folder, **own, resources=resources, loader="{dataloader: {workers: 1}}")
        return searched(folder, "tiny.yaml", within_s=400)


@pytest.fixture(scope="module")
def runs(done: Search) -> dict[str, dict[str, Any]]:
    return {fault: run_of(record) for fault, record in by_fault(done.folder).items()}


def test_search_goes_on_to_its_end_and_leaves_nothing(done: Search) -> None:
    assert_each_once(done.folder, trials=len(FAULTS))
    assert_unlocked(done.folder)


@pytest.mark.parametrize("fault", SHOWN)
def test_trial_that_hangs_fails_with_the_stacks_of_its_threads(
    fault: str, runs: dict[str, dict[str, Any]]
) -> None:
    run = runs[fault]
    assert run["status"] == "failed"
    assert "hung" in run["stop_reason"]
    assert SHOWN[fault] in run["traceback"]
    assert len(run["evaluations"]) == 2


@pytest.mark.parametrize("fault", SILENT)
def test_process_that_does_not_answer_is_ended(fault: str, runs: dict[str, dict[str, Any]]) -> None:
    run = runs[fault]
    assert run["status"] == "failed"
    assert run["stop_reason"]
    assert run["traceback"]


def test_trial_beside_them_is_well(runs: dict[str, dict[str, Any]]) -> None:
    assert runs["none"]["status"] == "missed"
