import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import is_alive

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
