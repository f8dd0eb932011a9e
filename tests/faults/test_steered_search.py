"""Real searches that are steered while they run, and whose drivers are killed in between."""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from faulty_runs import Search, assert_each_once, limits, searching, write_study
from helpers.command import finished, ledger, run_inside

import tune_speed
from tune_speed.core.errors import ConfigError, ServiceError

pytestmark = pytest.mark.slow

ACTS_WITHIN_S = 2.0
SOON = limits({"tuning.ray.trial_process.END_S": 2})
"""A process whose trial was stopped, and waits in a step, ends so soon."""


@pytest.fixture
def steering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], tune_speed.Steering]:
    monkeypatch.setenv("TUNE_SPEED_STUDIES", str(tmp_path / "tune_speed_studies"))
    return lambda: tune_speed.steer("tiny")


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in ledger(folder) if event["event"] == kind]


def answered(folder: Path) -> list[str]:
    """Returns the actions that were acted on, in their order."""
    return [event["request"]["action"] for event in events(folder, "steered")]


def delays_s(folder: Path) -> list[float]:
    """Returns how long after each request its answer came [s]."""
    moments = [(e["request"]["at"], e["at"]) for e in events(folder, "steered")]
    return [
        (datetime.fromisoformat(at) - datetime.fromisoformat(asked)).total_seconds()
        for asked, at in moments
    ]


def num_training(folder: Path) -> int:
    return len(list((folder / "faults").glob("training-*")))


def test_search_that_is_steered_killed_and_resumed_does_each_thing_once(
    tmp_path: Path, steering: Callable[[], tune_speed.Steering]
) -> None:
    write_study(
        tmp_path, model="fault: waits, evaluations: 1", trials=3, concurrent=1, hang_after="600s"
    )
    with searching(tmp_path, "tiny.yaml", **SOON) as search:
        search.wait_until(lambda: num_training(tmp_path))
        steer_and_kill(search, steering())
    assert max(delays_s(tmp_path)) < ACTS_WITHIN_S
    assert answered(tmp_path) == ["pause", "set", "try", "stop", "go-on"]
    (stopped,) = finished(tmp_path)
    assert (stopped["trial_id"], stopped["runs"][-1]["stop_reason"]) == ("t0000", "stopped by hand")

    (tmp_path / "faults" / "go").touch()
    with searching(tmp_path, "tiny.yaml", "--resume") as search:
        search.wait_until(lambda: len(answered(tmp_path)) == 7)
        # A pause without a trial, in which Tune does nothing but ask for one.
        search.wait_until(lambda: len(finished(tmp_path)) + num_waiting(tmp_path) == 3)
        time.sleep(3)
        steering().set(concurrent=1)
        search.process.send_signal(signal.SIGINT)
        assert search.wait(within_s=60) == 130, search.err
    assert delays_s(tmp_path)[-1] < ACTS_WITHIN_S
    before = len(events(tmp_path, "proposed"))

    with searching(tmp_path, "tiny.yaml", "--resume") as search:
        search.wait_until(lambda: "paused: `tune-speed steer tiny go-on`" in search.err)
        search.wait_until(lambda: is_steered(steering))
        assert len(events(tmp_path, "proposed")) == before
        steering().go_on()
        assert search.wait(within_s=120) in (0, 1), search.err
    assert answered(tmp_path)[5:] == ["set", "pause", "set", "set", "go-on"]
    assert max(delays_s(tmp_path)[7:]) < ACTS_WITHIN_S
    assert_each_once(tmp_path, trials=4)
    check_results(tmp_path)


def steer_and_kill(search: Search, steering: tune_speed.Steering) -> None:
    folder = search.folder
    steering.pause()
    steering.set(concurrent=2, trials=9)
    steering.try_next({"lr": 0.3})
    steering.stop("t0000")
    search.wait_until(lambda: finished(folder))
    assert len(events(folder, "proposed")) == 1
    steering.go_on()
    search.wait_until(lambda: len(events(folder, "proposed")) == 3)
    # The driver hears of nothing more before it is killed.
    (driver,) = search.named("bin/tune-speed")
    driver.suspend()
    steering.wait_s = 0.5
    with pytest.raises(ServiceError, match="what was not acted on"):
        steering.set(trials=4)
    with pytest.raises(ServiceError):
        steering.pause()
    driver.kill()
    search.wait(within_s=10)
    assert search.left_after(30) == []


def num_waiting(folder: Path) -> int:
    """Returns how many trials are without a record and were not begun in the last session."""
    ended = {record["trial_id"] for record in finished(folder)}
    proposed = [event["trial_id"] for event in events(folder, "proposed")]
    return sum(proposed.count(trial) == 1 and trial not in ended for trial in set(proposed))


def is_steered(steering: Callable[[], tune_speed.Steering]) -> bool:
    """Returns whether the search acts on what it is asked, and asks it for nothing new."""
    with suppress(ConfigError, ServiceError):
        steering().set(trials=4)
        return True
    return False


def check_results(folder: Path) -> None:
    records = {record["trial_id"]: record for record in finished(folder)}
    by_hand = [r for r in records.values() if r["proposal_reason"].startswith("added by hand")]
    assert [r["params"]["optimizer.sgd.lr"] for r in by_hand] == [0.3]
    assert records["t0000"]["workload"]["target"]["value"] == 0.99
    seen = run_inside("watch", "tiny", "--once", "--json", folder=folder).json
    assert (seen["planned"], seen["paused"], seen["state"]) == (4, False, "ended")
    lines = [each["line"] for each in seen["steered"]]
    assert len(lines) == 10 and lines[0].startswith("pause: no trial begins")
    listed = run_inside("steer", "tiny", folder=folder).out.splitlines()
    assert [line[21:] for line in listed] == lines
    assert run_inside("steer", "tiny", "pause", folder=folder).code == 2, "no search runs"


def test_time_budget_of_trials_that_run_is_changed_both_ways(
    tmp_path: Path, steering: Callable[[], tune_speed.Steering]
) -> None:
    model = "fault: none, slow_s: 0.2"
    write_study(tmp_path, model=model, trials=2, epochs=300, concurrent=1, time_budget="25s")
    with searching(tmp_path, "tiny.yaml") as search:
        search.wait_until(lambda: num_training(tmp_path))
        assert "was 25s" in steering().set(time_budget="10m").text
        time.sleep(25)
        assert events(tmp_path, "interrupted") == []
        with pytest.raises(ConfigError, match="must be more than the "):
            steering().set(time_budget=20)
        passed_s = 27
        while not events(tmp_path, "interrupted"):
            with suppress(ConfigError, ServiceError):
                steering().set(time_budget=passed_s)
                break
            passed_s += 5
        assert search.wait(within_s=60) == 1, search.err
    (interrupted,) = events(tmp_path, "interrupted")
    assert interrupted["reason"] == {"kind": "budget_over"}
