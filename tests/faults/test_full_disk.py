"""Disks that run full while a search runs: what finished is kept, and the study goes on later."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from command import TINY_STUDY, Done, finished, ledger
from faulty_runs import (
    assert_each_once,
    assert_unlocked,
    searched,
    searching,
    write_study,
)
from small_disk import can_mount, fill, make_room, mounted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_mount(), reason="only root may mount a small disk"),
]

TRIALS = 3
DISK_MIB = 260
"""No study begins with less than 200 MiB free."""


def test_full_disk_stops_the_search_and_room_lets_it_go_on(tmp_path: Path) -> None:
    """Ledger, MLflow's SQLite store and checkpoints are on it, as by default."""
    write_study(tmp_path, model="slow_s: 0.05", trials=1000, concurrent=1, checkpoint_every="0.1s")
    with mounted(tmp_path / "disk", size_mib=DISK_MIB) as disk:
        (disk / "studies").mkdir()
        (tmp_path / "tune_speed_studies").symlink_to(disk / "studies")
        (tmp_path / "mlflow.db").symlink_to(disk / "mlflow.db")
        with searching(tmp_path, "tiny.yaml") as search:
            search.wait_until(lambda: len(finished(tmp_path)) >= 2)
            fill(disk)
            code = search.wait(within_s=120)
            assert search.left_after(20) == []
        assert code == 5, search.err
        assert "error: " in search.err and "ledger.jsonl must be writable" in search.err
        assert "Free some space" in search.err and "--resume" in search.err
        assert "Traceback" not in search.err
        assert_unlocked(tmp_path)
        before = finished(tmp_path)
        make_room(disk)
        trials = 2 + len({event["trial_id"] for event in ledger(tmp_path) if "seed" in event})
        searched(tmp_path, "tiny.yaml", "--resume", "--trials", str(trials))
        assert finished(tmp_path)[: len(before)] == before
        assert_each_once(tmp_path, trials=trials)


def test_full_disk_of_mlflow_and_checkpoints_costs_no_trial(tmp_path: Path) -> None:
    (tmp_path / "faults").mkdir()
    with mounted(tmp_path / "disk", size_mib=DISK_MIB) as disk:
        write_study(
            tmp_path,
            model="slow_s: 0.05",
            trials=TRIALS,
            concurrent=1,
            checkpoint_every="0.1s",
            storage_path=disk / "checkpoints",
        )
        store = {"MLFLOW_TRACKING_URI": f"sqlite:///{disk}/mlflow.db"}
        with searching(tmp_path, "tiny.yaml", **store) as search:
            search.wait_until(lambda: len(finished(tmp_path)) >= 1)
            fill(disk)
            code = search.wait(within_s=200)
            assert search.left_after(20) == []
        assert code in (1, 4, 5), search.err
        assert "Traceback" not in search.err
        assert len(finished(tmp_path)) == TRIALS
        assert {record["status"] for record in finished(tmp_path)} == {"missed"}
        make_room(disk)
        searched(tmp_path, "tiny.yaml", "--resume", **store)
        shutil.copy(disk / "mlflow.db", tmp_path / "mlflow.db")
    assert_each_once(tmp_path, trials=TRIALS)


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
