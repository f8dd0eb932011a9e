"""`kill -9` of the driver at several moments: all that it started ends, and the study resumes."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command import finished, ledger
from faulty_runs import (
    assert_each_once,
    assert_unlocked,
    searched,
    searching,
    write_study,
)

pytestmark = pytest.mark.slow

TRIALS = 4
END_S = 30
"""Time for Ray's processes, trials and their loaders to notice that the driver is gone. It took 2 s
on a busy machine."""


def is_proposed(folder: Path) -> bool:
    return any(event["event"] == "proposed" for event in ledger(folder))


def is_training(folder: Path) -> bool:
    return any((folder / "faults").glob("training-*"))


def one_has_ended(folder: Path) -> bool:
    return bool(finished(folder))


def all_have_ended(folder: Path) -> bool:
    return len(finished(folder)) == TRIALS


def kill_when(
    reached: Callable[[Path], bool], folder: Path, *arguments: str, is_frozen: bool = False
) -> None:
    """Kills the driver of a search at that moment; checks that all else ends by itself.

    `is_frozen`: its trials and their loaders were stopped by a signal before, and notice nothing.
    """
    for file in (folder / "faults").glob("*"):
        file.unlink()
    with searching(folder, "tiny.yaml", *arguments) as search:
        search.wait_until(lambda: reached(folder))
        for process in [*search.named("TrialProcess"), *search.named("gather_worker")]:
            if is_frozen:
                process.suspend()
        drivers = search.named("bin/tune-speed")
        assert len(drivers) == 1
        drivers[0].kill()
        search.wait(within_s=10)
        began = time.monotonic()
        assert search.left_after(END_S) == []
        print(
            f"killed when {reached.__name__}: nothing left {time.monotonic() - began:.1f} s later"
        )
    assert_unlocked(folder)


def test_driver_killed_at_any_moment_loses_and_repeats_nothing(tmp_path: Path) -> None:
    write_study(
        tmp_path,
        model="slow_s: 0.05",
        trials=TRIALS,
        loader="{dataloader: {workers: 1}}",
        concurrent=1,
        checkpoint_every="0.1s",
    )
    seen: dict[str, object] = {}
    resume: tuple[str, ...] = ()
    moments = (is_proposed, is_training, one_has_ended, all_have_ended)
    for number, moment in enumerate(moments):
        # Two trials were running once: of these one has just ended.
        several = ("--concurrent", "2") if moment is one_has_ended else ()
        kill_when(moment, tmp_path, *resume, *several, is_frozen=number == 1)
        resume = ("--resume",)
        records = {record["trial_id"]: record for record in finished(tmp_path)}
        assert {trial_id: records[trial_id] for trial_id in seen} == seen, moment
        seen = dict(records)
    searched(tmp_path, "tiny.yaml", *resume)
    assert_each_once(tmp_path, trials=TRIALS)
    records = {record["trial_id"]: record for record in finished(tmp_path)}
    assert records == seen
