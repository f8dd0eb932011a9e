"""Disks that run full while a search runs: what finished is kept, and the study goes on later."""

from collections.abc import Callable
from pathlib import Path

import pytest
from faulty_runs import (
    assert_each_once,
    assert_unlocked,
    limits,
    searched_inside,
    searching,
    write_study,
)
from helpers.command import TINY_STUDY, Done, finished, ledger
from small_disk import can_mount, fill, make_room, mounted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_mount(), reason="only root may mount a small disk"),
]

DISK_MIB = 260
"""No study begins with less than 200 MiB free."""
SOON = limits({"tracking.writer.tracker.DELIVERY_S": 10})
"""Longest time for which a search waits for MLflow at its end."""


def test_full_disks_lose_no_trial_and_with_room_the_search_goes_on(tmp_path: Path) -> None:
    """Without MLflow's SQLite store and checkpoints it goes on; without its ledger it stops."""
    with (
        mounted(tmp_path / "disk", size_mib=DISK_MIB) as disk,
        mounted(tmp_path / "ledgers", size_mib=DISK_MIB) as ledgers,
    ):
        write_study(
            tmp_path,
            model="slow_s: 0.05",
            trials=1000,
            concurrent=1,
            checkpoint_every="0.1s",
            storage_path=disk / "checkpoints",
        )
        (tmp_path / "tune_speed_studies").symlink_to(ledgers)
        (tmp_path / "mlflow.db").symlink_to(disk / "mlflow.db")
        with searching(tmp_path, "tiny.yaml", **SOON) as search:
            search.wait_until(lambda: len(finished(tmp_path)) >= 1)
            fill(disk)
            # The first of them may have begun before.
            enough = len(finished(tmp_path)) + 2
            search.wait_until(lambda: len(finished(tmp_path)) >= enough)
            fill(ledgers)
            code = search.wait(within_s=120)
            assert search.left_after(20) == []
        assert code == 5, search.err
        assert "ledger.jsonl" in search.err and "--resume" in search.err
        assert "Traceback" not in search.err
        assert_unlocked(tmp_path)
        before = finished(tmp_path)
        assert {record["status"] for record in before} == {"missed"}
        make_room(disk)
        make_room(ledgers)
        trials = 1 + len({event["trial_id"] for event in ledger(tmp_path) if "seed" in event})
        searched_inside(tmp_path, "tiny.yaml", "--resume", "--trials", str(trials))
        assert finished(tmp_path)[: len(before)] == before
        assert_each_once(tmp_path, trials=trials)


def test_full_disk_of_the_data_cache_is_said_before_anything_runs(
    tmp_path: Path, call: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted(tmp_path / "disk", size_mib=1) as disk:
        (tmp_path / "tiny.yaml").write_text(TINY_STUDY)
        fill(disk)
        monkeypatch.setenv("TUNE_SPEED_CACHE", str(disk))
        done = call("search", "tiny.yaml", folder=tmp_path)
        assert done.code == 5, done.err
        assert str(disk) in done.err and "Traceback" not in done.err
        assert finished(tmp_path) == []
        make_room(disk)
        assert not list(disk.glob("*.tmp-*"))
