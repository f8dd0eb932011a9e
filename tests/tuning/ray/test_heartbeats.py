from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import RaySystemError
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback

from tune_speed.tuning.ray import tuner
from tune_speed.tuning.ray.liveness import MARGIN_S, START_S, OwnTime
from tune_speed.tuning.ray.tuner import HEARTBEAT_S, Adapter, RayTrial


class Listening:
    def __init__(self, *, limit_s: float) -> None:
        self.now_s, self.killed = 0.0, list[str]()
        search = SimpleNamespace(at_once=1, hang_after_s=limit_s - MARGIN_S - HEARTBEAT_S)
        controller: Any = SimpleNamespace(study=SimpleNamespace(search=search))
        self.adapter = Adapter(controller, SimpleNamespace())  # type: ignore[arg-type]
        self.adapter._time = OwnTime(lambda: self.now_s)
        self.adapter._trials = {name: RayTrial(name, None) for name in "ab"}
        self.adapter._no_room = lambda: "no room"  # type: ignore[assignment, method-assign]

    def pass_by(self, seconds: int, *, running: str, heard: str = "") -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            self.look(running, heard)

    def look(self, running: str, heard: str = "") -> None:
        for name in heard:
            self.adapter.reported(name, {})
        self.adapter.check_liveness(lambda: {name: name for name in running})


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Listening:
    listening = Listening(limit_s=30)
    monkeypatch.setattr(tuner.ray, "kill", listening.killed.append)
    return listening


def test_only_who_was_silent_for_too_long_is_killed_and_once(listening: Listening) -> None:
    listening.pass_by(10, running="ab", heard="ab")
    listening.pass_by(29, running="ab", heard="a")
    assert listening.killed == []
    listening.pass_by(10, running="ab", heard="a")
    assert listening.killed == ["b"]


def test_process_that_has_not_spoken_yet_has_longer(listening: Listening) -> None:
    listening.pass_by(100, running="a", heard="a")
    listening.pass_by(int(START_S) + 30, running="ab", heard="a")
    assert listening.killed == []
    listening.pass_by(3, running="ab", heard="a")
    assert listening.killed == ["b"]


def test_while_the_driver_is_frozen_nobody_is_silent(listening: Listening) -> None:
    listening.pass_by(5, running="a", heard="a")
    listening.now_s += 3600
    listening.look("a")
    assert listening.killed == []
    listening.pass_by(30, running="a")
    assert listening.killed == ["a"]


def test_waiting_ends_where_nothing_runs_for_too_long() -> None:
    listening = Listening(limit_s=60 + MARGIN_S + HEARTBEAT_S)
    listening.pass_by(50, running="")
    listening.pass_by(1, running="a")
    listening.pass_by(50, running="")
    for trial in listening.adapter._trials.values():
        trial.has_ended = True
    listening.pass_by(100, running="")
    for trial in listening.adapter._trials.values():
        trial.has_ended = False
    listening.pass_by(60, running="")
    assert listening.adapter.failure is None
    listening.pass_by(2, running="")
    assert listening.adapter.failure is not None


def test_process_without_memory_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_answer(*asked: Any) -> None:
        raise RaySystemError("Unable to allocate internal buffer.")

    trial, died = Trial("process", stub=True), list[Trial]()
    asked: Any = SimpleNamespace(get_auto_filled_metrics=SimpleNamespace(remote=promise))
    trial.set_ray_actor(asked)
    monkeypatch.setattr(ray, "get", no_answer)
    adapter: Any = SimpleNamespace(died=died.append)
    callback = tuner._Callback(adapter, tuner._Scheduler(adapter), lambda: None)
    # Tune calls its own callbacks after those that it is given.
    for each in (callback, TrialProgressCallback()):
        each.on_trial_error(iteration=1, trials=[trial], trial=trial)
    assert died == [trial]


def promise(**options: Any) -> Any:
    return ray.ObjectRef.from_random()
