"""`kill -9` of what a search started: trial processes, and Ray's own on this machine."""

from pathlib import Path

import pytest
from command import finished, ledger
from faulty_runs import (
    assert_each_once,
    assert_unlocked,
    run_of,
    searched,
    searching,
    write_study,
)

pytestmark = pytest.mark.slow

ATTEMPTS = 2
POINTS = (
    "{model.faulty.fault: waits, model.faulty.times: 1}",
    "{model.faulty.fault: os_exit, model.faulty.times: 1}",
    "{model.faulty.fault: killed, model.faulty.times: 1000}",
    "{model.faulty.fault: none, model.faulty.times: 1}",
)
"""The second's process is killed once, the third's each time."""


def test_search_whose_processes_are_killed_ends_and_resumes(tmp_path: Path) -> None:
    """While its first trial waits, Ray's own; then, in a search that goes on, those of trials."""
    write_study(
        tmp_path,
        model="fault: {choices: [waits, os_exit, killed, none]}, times: {choices: [1, 1000]}",
        trials=len(POINTS),
        points_to_evaluate=f"[{', '.join(POINTS)}]",
        loader="{dataloader: {workers: 1}}",
        concurrent=1,
        attempts=ATTEMPTS,
        hang_after="600s",
    )
    kill_ray(tmp_path, "raylet/raylet", called="raylet")
    kill_ray(tmp_path, "gcs/gcs_server", "--resume", called="GCS")
    (tmp_path / "faults" / "go").touch()
    searched(tmp_path, "tiny.yaml", "--resume")
    assert_each_once(tmp_path, trials=len(POINTS))
    assert_unlocked(tmp_path)
    by_id = {record["trial_id"]: run_of(record) for record in finished(tmp_path)}
    assert {by_id[trial]["status"] for trial in ("t0000", "t0001", "t0003")} == {"missed"}
    assert by_id["t0002"]["status"] == "failed"
    assert by_id["t0002"]["stop_reason"].startswith("its process died: ")
    assert len(list((tmp_path / "faults").glob("killed-*"))) == ATTEMPTS
    interrupted = [e["trial_id"] for e in ledger(tmp_path) if e["event"] == "interrupted"]
    assert (interrupted.count("t0001"), interrupted.count("t0002")) == (1, ATTEMPTS - 1)


def kill_ray(folder: Path, victim: str, *arguments: str, called: str) -> None:
    """Kills one of Ray's processes in training: Ray itself would wait for a minute, or for ever."""
    for file in (folder / "faults").glob("*"):
        file.unlink()
    with searching(folder, "tiny.yaml", *arguments) as search:
        search.wait_until(lambda: any((folder / "faults").glob("training-*")))
        killed = search.named(victim)
        assert len(killed) == 1
        killed[0].kill()
        code = search.wait(within_s=50)
        assert code == 4, search.out + search.err
        assert f"Ray's {called} must" in search.err
        assert "--resume" in search.err
        assert "Traceback" not in search.err
        assert search.left_after(30) == []
    assert_unlocked(folder)
