"""Trials that end in every way that a trial can: each is recorded once, and the search goes on."""

import json
from pathlib import Path
from typing import Any

import pytest
from faulty_runs import (
    Ended,
    assert_each_once,
    assert_unlocked,
    by_fault,
    one_each,
    run_of,
    searched_inside,
    write_study,
)

from tune_speed.core.errors import MOST_OF_REASON, MOST_OF_TRACEBACK
from tune_speed.tuning.ray import tuner

pytestmark = pytest.mark.slow

RAISED = {
    "backward": "ArithmeticError: no gradient here",
    "recursion": "RecursionError: maximum recursion depth exceeded",
    "long_message": "ValueError: a long tale a long tale",
    "not_text": "ValueError: ",
    "secret": "ConnectionError: could not fetch postgresql://me:***@db/x",
    "sys_exit": "SystemExit: 0",
    "kills_loader": "DataError: A loader's worker process must deliver its batch",
}
DIVERGED = ("nan", "inf")
HUNG = ("keeps_lock", "stops_loader")
"""The interpreter's lock is never let go, so its process is silent; a loader's worker is stopped.
They wait while the others run."""
FAULTS = (*HUNG, *RAISED, *DIVERGED, "prints", "segfault", "leaks")
"""A process that has leaked is at its limit, so it is the last."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> Ended:
    """A search in which each fault happened in one trial."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_SPEED_CACHE", str(session_cache))
        folder = tmp_path_factory.mktemp("failing")
        own = one_each(FAULTS, attempts=1, hang_after="25s", concurrent=3)
        resources = "{cpu: 0.5, memory_gib: 0.75}"
        write_study(folder, **own, resources=resources, loader="{dataloader: {workers: 1}}")
        patch.setattr(tuner, "MARGIN_S", 5.0)
        return searched_inside(folder, "tiny.yaml", "--json")


@pytest.fixture(scope="module")
def runs(done: Ended) -> dict[str, dict[str, Any]]:
    return {fault: run_of(record) for fault, record in by_fault(done.folder).items()}


def test_every_trial_is_there_once_and_nothing_is_locked(done: Ended) -> None:
    assert_each_once(done.folder, trials=len(FAULTS))
    assert_unlocked(done.folder)


def test_command_prints_json_and_nothing_else(done: Ended) -> None:
    assert sum(json.loads(done.out)["trials"].values()) == len(FAULTS)


@pytest.mark.parametrize("fault", RAISED)
def test_what_a_trial_raises_is_its_reason(fault: str, runs: dict[str, dict[str, Any]]) -> None:
    run = runs[fault]
    assert run["status"] == "failed"
    assert run["stop_reason"].startswith(RAISED[fault])
    assert "Traceback (most recent call last)" in run["traceback"]
    # What it had reached before stays on record.
    assert len(run["evaluations"]) == 2


@pytest.mark.parametrize("fault", DIVERGED)
def test_loss_that_is_no_number_is_no_score(fault: str, runs: dict[str, dict[str, Any]]) -> None:
    run = runs[fault]
    assert run["status"] == "diverged"
    assert run["time_to_target_s"] is None


def test_trial_that_takes_its_process_along_has_a_reason(
    runs: dict[str, dict[str, Any]],
) -> None:
    run = runs["segfault"]
    assert run["status"] == "failed"
    assert run["stop_reason"].startswith("its process died: ")
    assert run["traceback"]


def test_trial_whose_loader_hangs_fails_with_the_stacks_of_its_threads(
    runs: dict[str, dict[str, Any]],
) -> None:
    run = runs["stops_loader"]
    assert run["status"] == "failed"
    assert "worker_pool.py" in run["traceback"]
    assert len(run["evaluations"]) == 2


def test_process_that_gives_no_sign_of_life_is_ended(runs: dict[str, dict[str, Any]]) -> None:
    run = runs["keeps_lock"]
    assert run["status"] == "failed"
    assert "25 s" in run["stop_reason"]
    assert run["traceback"]


def test_trial_that_leaks_is_out_of_memory_by_its_limit(runs: dict[str, dict[str, Any]]) -> None:
    run = runs["leaks"]
    assert run["status"] == "oom"
    assert "out of memory" in run["stop_reason"] and run["traceback"]


def test_what_a_trial_prints_stays_with_it_and_does_no_harm(
    done: Ended, runs: dict[str, dict[str, Any]]
) -> None:
    assert runs["prints"]["status"] == "missed"
    assert len(runs["prints"]["evaluations"]) == 4
    assert "noise" not in done.out + done.err


def test_message_of_megabytes_is_cut(done: Ended, runs: dict[str, dict[str, Any]]) -> None:
    run = runs["long_message"]
    assert len(run["stop_reason"]) < 2 * MOST_OF_REASON
    assert len(run["traceback"]) < 2 * MOST_OF_TRACEBACK
    assert len(done.err) < 100_000


def test_no_control_character_reaches_terminal_or_store(
    done: Ended, runs: dict[str, dict[str, Any]]
) -> None:
    run = runs["not_text"]
    for text in (run["stop_reason"], run["traceback"].replace("\n", ""), *done.err.splitlines()):
        assert text.isprintable(), text


def test_secret_in_a_message_is_kept_nowhere(done: Ended) -> None:
    kept = [path for path in done.folder.rglob("*") if path.is_file()]
    assert len(kept) > 5
    for path in kept:
        assert b"s3cret" not in path.read_bytes(), path
