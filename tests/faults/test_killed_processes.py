"""`kill -9` of a search's processes: the driver, Ray's own on this machine, those of trials.

All that was started ends by itself, and the study goes on: nothing is lost, and nothing repeated.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from faulty_runs import (
    Search,
    assert_each_once,
    assert_unlocked,
    limits,
    run_of,
    searched_inside,
    searching,
    write_study,
)
from helpers.command import finished, ledger

pytestmark = pytest.mark.slow

END_S = 30
"""Time for Ray's processes, trials and their loaders to notice that the driver is gone. It took 2 s
on a busy machine."""
FAULTS = "fault: {choices: [waits, os_exit]}, times: {choices: [1, 1000]}"
POINTS = (
    "{model.faulty.fault: waits, model.faulty.times: 1000}",
    "{model.faulty.fault: os_exit, model.faulty.times: 1}",
    "{model.faulty.fault: waits, model.faulty.times: 1000}",
)
"""Two wait until they may go on; the process of the one between them dies once."""
SOON = limits({"tuning.ray.health.GRACE_S": 5})
"""A driver whose main thread is in one of Ray's calls is ended so soon after Ray died."""


def is_proposed(folder: Path) -> bool:
    return any(event["event"] == "proposed" for event in ledger(folder))


def is_training(folder: Path) -> bool:
    return any((folder / "faults").glob("training-*"))


def one_has_ended(folder: Path) -> bool:
    return bool(finished(folder))


def test_search_whose_processes_are_killed_one_after_the_other_ends_as_it_would(
    tmp_path: Path,
) -> None:
    write_study(
        tmp_path,
        model=f"{FAULTS}, evaluations: 1",
        trials=len(POINTS),
        points_to_evaluate=f"[{', '.join(POINTS)}]",
        loader="{dataloader: {workers: 1}}",
        concurrent=1,
        attempts=2,
        hang_after="600s",
        checkpoint_every="0.1s",
    )
    kill_ray(tmp_path, "raylet/raylet", called="raylet", when=is_proposed)
    kill_ray(tmp_path, "gcs/gcs_server", called="GCS", when=is_training)
    # Two are running: the one beside the first ends. Trials and loaders notice nothing.
    with kill_driver(tmp_path, "--concurrent", "2", when=one_has_ended) as search:
        for process in [*search.named("TrialProcess"), *search.named("data/boxes.py")]:
            process.suspend()
    (before,) = finished(tmp_path)
    assert before["trial_id"] == "t0001"
    (tmp_path / "faults" / "go").touch()
    searched_inside(tmp_path, "tiny.yaml", "--resume")
    assert_each_once(tmp_path, trials=len(POINTS))
    assert_unlocked(tmp_path)
    records = finished(tmp_path)
    assert records[0] == before
    assert {run_of(record)["status"] for record in records} == {"missed"}
    interrupted = [e["trial_id"] for e in ledger(tmp_path) if e["event"] == "interrupted"]
    assert interrupted.count("t0001") == 1


@contextmanager
def kill_driver(folder: Path, *arguments: str, when: Callable[[Path], bool]) -> Iterator[Search]:
    """Begins or resumes the search; at that moment, after the block, kills its driver."""
    with searching_on(folder, *arguments) as search:
        search.wait_until(lambda: when(folder))
        yield search
        drivers = search.named("bin/tune-speed")
        assert len(drivers) == 1
        drivers[0].kill()
        search.wait(within_s=10)
        began = time.monotonic()
        assert search.left_after(END_S) == []
        print(f"killed when {when.__name__}: nothing left {time.monotonic() - began:.1f} s later")
    assert_unlocked(folder)


def kill_ray(folder: Path, victim: str, *, called: str, when: Callable[[Path], bool]) -> None:
    """Kills one of Ray's processes: Ray itself would wait for a minute, or for ever."""
    with searching_on(folder) as search:
        search.wait_until(lambda: when(folder))
        killed = search.named(victim)
        assert len(killed) == 1
        killed[0].kill()
        code = search.wait(within_s=50)
        assert code == 4, search.out + search.err
        assert f"Ray's {called}" in search.err and "--resume" in search.err
        assert "Traceback" not in search.err
        assert search.left_after(30) == []
    assert_unlocked(folder)


@contextmanager
def searching_on(folder: Path, *arguments: str) -> Iterator[Search]:
    """Begins the search, or goes on with it if there is one; the marks of the last one are gone."""
    for file in (folder / "faults").glob("*"):
        file.unlink()
    resume = ["--resume"] if ledger(folder) else []
    with searching(folder, "tiny.yaml", *resume, *arguments, **SOON) as search:
        yield search
