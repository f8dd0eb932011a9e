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

KILLED_ONCE, KILLED_ALWAYS, WELL = "os_exit", "killed", "none"


def test_trial_whose_process_is_killed_is_tried_again_and_then_given_up(tmp_path: Path) -> None:
    """The one is killed once, another each time, and the search goes on."""
    once = f"{{model.faulty.fault: {KILLED_ONCE}, model.faulty.times: 1}}"
    always = f"{{model.faulty.fault: {KILLED_ALWAYS}, model.faulty.times: 1000}}"
    well = f"{{model.faulty.fault: {WELL}, model.faulty.times: 1}}"
    faults = f"fault: {{choices: [{KILLED_ONCE}, {KILLED_ALWAYS}, {WELL}]}}"
    write_study(
        tmp_path,
        model=f"{faults}, times: {{choices: [1, 1000]}}",
        trials=3,
        points_to_evaluate=f"[{once}, {always}, {well}]",
        attempts=3,
    )
    searched(tmp_path, "tiny.yaml")
    assert_each_once(tmp_path, trials=3)
    assert_unlocked(tmp_path)
    by_id = {record["trial_id"]: run_of(record) for record in finished(tmp_path)}
    assert by_id["t0000"]["status"] == by_id["t0002"]["status"] == "missed"
    assert by_id["t0001"]["status"] == "failed"
    assert by_id["t0001"]["stop_reason"].startswith("its process died: ")
    begun = [path for path in (tmp_path / "faults").iterdir() if path.name.startswith("killed-")]
    assert len(begun) == 3
    interrupted = [e["trial_id"] for e in ledger(tmp_path) if e["event"] == "interrupted"]
    assert (interrupted.count("t0000"), interrupted.count("t0001")) == (1, 2)


def test_search_whose_ray_is_killed_ends_and_resumes(tmp_path: Path) -> None:
    """First the raylet, then the GCS: Ray itself would wait for them for a minute, or for ever."""
    write_study(
        tmp_path, model="slow_s: 0.1", trials=3, loader="{dataloader: {workers: 1}}", epochs=4
    )
    resume: tuple[str, ...] = ()
    for victim, called in (("raylet/raylet", "raylet"), ("gcs/gcs_server", "GCS")):
        for file in (tmp_path / "faults").glob("*"):
            file.unlink()
        with searching(tmp_path, "tiny.yaml", *resume) as search:
            search.wait_until(lambda: any((tmp_path / "faults").glob("training-*")))
            killed = search.named(victim)
            assert len(killed) == 1
            killed[0].kill()
            code = search.wait(within_s=50)
            assert code == 4, search.out + search.err
            assert f"Ray's {called} must" in search.err
            assert "--resume" in search.err
            assert "Traceback" not in search.err
            assert search.left_after(30) == []
        assert_unlocked(tmp_path)
        resume = ("--resume",)
    searched(tmp_path, "tiny.yaml", *resume)
    assert_each_once(tmp_path, trials=3)
