"""Who is silent, on a clock that is turned by hand."""

from collections.abc import Iterable

from tune_speed.tuning.ray.liveness import START_S, HeartbeatMonitor, OwnTime, StallMonitor


class Listening:
    """A driver that looks once a second, and processes that are named by a letter."""

    def __init__(self, limit_s: float) -> None:
        self.now_s, self.killed = 0.0, list[str]()
        self.time = OwnTime(lambda: self.now_s)
        self.monitor = HeartbeatMonitor(limit_s=limit_s, kill=self.killed.append, time=self.time)

    def pass_by(self, seconds: int, *, running: str, heard: str = "") -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            self.look(running, heard)

    def look(self, running: str, heard: Iterable[str] = ()) -> None:
        for name in heard:
            self.monitor.beat(name)
        if self.time.is_time_to_look():
            self.monitor.look({name: name for name in running})


def test_only_who_was_silent_for_too_long_is_killed_and_once() -> None:
    listening = Listening(limit_s=30)
    listening.pass_by(10, running="ab", heard="ab")
    listening.pass_by(29, running="ab", heard="a")
    assert listening.killed == []
    listening.pass_by(10, running="ab", heard="a")
    assert listening.killed == ["b"]


def test_process_that_has_not_spoken_yet_has_longer() -> None:
    listening = Listening(limit_s=30)
    listening.pass_by(100, running="a", heard="a")
    listening.pass_by(int(START_S) + 30, running="ab", heard="a")
    assert listening.killed == []
    listening.pass_by(3, running="ab", heard="a")
    assert listening.killed == ["b"]


def test_name_that_runs_again_begins_anew() -> None:
    listening = Listening(limit_s=30)
    listening.pass_by(1, running="a", heard="a")
    listening.pass_by(25, running="a")
    listening.pass_by(2, running="")
    listening.pass_by(25, running="a")
    assert listening.killed == []


def test_while_the_driver_is_frozen_nobody_is_silent() -> None:
    listening = Listening(limit_s=30)
    listening.pass_by(5, running="a", heard="a")
    listening.now_s += 3600
    listening.look("a")
    assert listening.killed == []
    listening.pass_by(30, running="a")
    assert listening.killed == ["a"]


def test_waiting_ends_where_nothing_runs_for_too_long() -> None:
    now_s = [0.0]
    time = OwnTime(lambda: now_s[0])
    stall = StallMonitor(limit_s=60, time=time)

    def pass_by(seconds: int, *, is_waiting: bool, is_running: bool) -> bool:
        for _ in range(seconds):
            now_s[0] += 1.0
            assert time.is_time_to_look()
            ended = stall.look(is_waiting=is_waiting, is_running=is_running)
        return ended

    assert not pass_by(50, is_waiting=True, is_running=False)
    assert not pass_by(1, is_waiting=True, is_running=True)
    assert not pass_by(50, is_waiting=True, is_running=False)
    assert not pass_by(100, is_waiting=False, is_running=False)
    assert not pass_by(60, is_waiting=True, is_running=False)
    assert pass_by(2, is_waiting=True, is_running=False)
