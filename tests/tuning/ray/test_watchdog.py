import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.processes import is_alive

from tune_speed.training.distributed import local
from tune_speed.training.distributed.supervisor import Ended, Standing
from tune_speed.tuning.ray import liveness
from tune_speed.tuning.ray.liveness import TrialHung, watch_rank
from tune_speed.tuning.ray.trial_process import TrialProcess

PROGRAM = """
import os, subprocess, sys, threading, time
from tune_speed.runtime import heartbeat
from tune_speed.tuning.ray.liveness import Watchdog, leave

hung = threading.Event()

def on_hang(stacks, quiet_s):
    print(f"hung after {quiet_s:.2f} s", stacks, flush=True)
    hung.set()

def hang_here():
    hung.wait(60)

watchdog = Watchdog(on_hang=on_hang)
"""
LIMIT_S = 1.5


def start(program: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM + program]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def output_of(program: str) -> str:
    process = start(program)
    try:
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    return out


def test_thread_without_a_sign_of_life_is_shown_where_it_stands() -> None:
    out = output_of("watchdog.watch(limit_s=0.5)\nheartbeat.beat()\nhang_here()")
    assert out.startswith("hung after 0.50 s")
    assert "in hang_here" in out and "Thread MainThread" in out


def test_first_sign_of_life_may_take_longer_and_no_later_one() -> None:
    program = """
heartbeat.beat()  # Of the trial before.
watchdog.watch(limit_s=0.2, start_s=1.0)
time.sleep(0.6)
print("starts", not hung.is_set(), flush=True)
heartbeat.beat()
hang_here()
"""
    starts, hangs = output_of(program).splitlines()[:2]
    assert starts == "starts True"
    assert hangs.startswith("hung after 0.20 s")


@pytest.mark.slow
def test_signs_of_life_keep_it_quiet_and_so_does_rest() -> None:
    program = f"""
watchdog.watch(limit_s={LIMIT_S}, start_s=0)
for _ in range(40):
    time.sleep({LIMIT_S} / 20)
    heartbeat.beat()
watchdog.rest()
time.sleep(2 * {LIMIT_S})
print("went on")
"""
    assert output_of(program) == "went on\n"


@pytest.mark.slow
def test_time_in_which_the_process_was_frozen_does_not_count(tmp_path: Path) -> None:
    program = f"""
watchdog.watch(limit_s=4.0, start_s=0)
open({str(tmp_path / "ready")!r}, "w").close()
for _ in range(20):  # Of which the first goes on while it is frozen.
    time.sleep(0.1)
print(hung.is_set())
"""
    process = start(program)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "ready").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(5.0)
        os.kill(process.pid, signal.SIGCONT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert out == "False\n"


def test_nothing_that_it_started_outlives_a_process_that_leaves() -> None:
    program = """
sleeper = subprocess.Popen(["sleep", "600"])
print(sleeper.pid, flush=True)
threading.Thread(target=hang_here).start()
leave()
"""
    process = start(program)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    sleeper = int(out)
    deadline = time.monotonic() + 20
    while is_alive(sleeper):
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Line:
    def __init__(self) -> None:
        self.said: list[Ended] = []

    def ask(self, standing: Standing) -> str | None:
        raise AssertionError(standing)

    def tell(self, ended: Ended) -> None:
        self.said.append(ended)


def test_a_rank_that_hangs_says_where_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[Any] = []

    class Watchdog:
        def __init__(self, *, on_hang: Any) -> None:
            watched.append(on_hang)

        def watch(self, *, limit_s: float) -> None:
            watched.append(limit_s)

    monkeypatch.setattr(liveness, "Watchdog", Watchdog)
    monkeypatch.setattr(liveness, "LEAVE_S", 0.0)
    monkeypatch.setattr(liveness, "leave", lambda: watched.append("left"))
    watch_rank(line := Line(), limit_s=9.0)
    on_hang, limit_s = watched
    assert (limit_s, line.said) == (9.0, [])
    on_hang("Thread training: here", 12.0)
    (ended,) = line.said
    assert ended.rank == 0 and isinstance(ended.error, TrialHung) and watched[-1] == "left"
    assert str(ended.error) == "no step for 12 s\nThread training: here"


@pytest.mark.parametrize(("hang_after_s", "is_watched"), [(9.0, True), (float("inf"), False)])
def test_ranks_are_watched_where_they_may_not_hang_for_ever(
    monkeypatch: pytest.MonkeyPatch, hang_after_s: float, is_watched: bool
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(local, "run_here", lambda spec, **rest: given.append(rest))
    process, spec = TrialProcess.__new__(TrialProcess), SimpleNamespace(devices=2)
    process._open(spec, {"hang_after_s": hang_after_s})  # type: ignore[arg-type]
    watch = given[0]["watch"]  # Which ranks get pickled.
    assert (pickle.loads(pickle.dumps(watch)) is not None) == is_watched
