"""The process itself: signals, waits for a core, the garbage collector, its end with its parent."""

import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
import torch
from helpers.processes import is_alive

from tune_speed.runtime import process
from tune_speed.runtime.process import HeldUp, cpu_wait_s, handlers_kept, stop_signals

BOTH = (signal.SIGINT, signal.SIGUSR1)


def test_handlers_that_tune_leaves_behind_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGUSR1)
    with handlers_kept(*BOTH):
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGUSR1, lambda *_: None)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGUSR1)) == before


def test_in_another_thread_no_handler_is_touched() -> None:
    kept: list[object] = []

    def keep() -> None:
        with handlers_kept(*BOTH) as before:
            kept.append(before)

    thread = threading.Thread(target=keep)
    thread.start()
    thread.join()
    assert kept == [{}]


def test_first_signal_is_noted_and_a_second_acts_as_it_would_without() -> None:
    acted: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: acted.append(number))
    try:
        with stop_signals(*BOTH) as has_come:
            assert not has_come()
            signal.raise_signal(signal.SIGUSR1)
            assert has_come() and acted == []
            signal.raise_signal(signal.SIGUSR1)
            assert acted == [signal.SIGUSR1]
        signal.raise_signal(signal.SIGUSR1)
        assert acted == [signal.SIGUSR1] * 2
    finally:
        signal.signal(signal.SIGUSR1, before)


BUSY = "import time; end = time.monotonic() + {s}\nwhile time.monotonic() < end: pass"


def test_wait_for_a_core_is_counted_from_the_moment_that_is_given() -> None:
    whole_s = cpu_wait_s()
    assert whole_s is not None and cpu_wait_s(since=None) is None
    since_s = cpu_wait_s(since=whole_s)
    assert since_s is not None and 0 <= since_s <= 60 and cpu_wait_s(since=1e9) == 0.0


@pytest.mark.slow
def test_waiting_for_a_core_is_seen_where_two_share_one() -> None:
    """Two busy processes on one core: each waits about half of the time."""
    code = (
        "import os, time, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from tune_speed.runtime.process import cpu_wait_s\n"
        "before, end = cpu_wait_s(), time.monotonic() + 2.0\n"
        "print('ready', flush=True)\n"
        "while time.monotonic() < end: pass\n"
        "print(cpu_wait_s() - before)\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    waited_s = [float(process.communicate(timeout=60)[0].split()[-1]) for process in started]
    assert max(waited_s) > 0.1


def held_up_frac(before: str, beside: str, *, held_s: float = 1.5) -> float:
    """Returns what a busy thread says that shares its only core with another process."""
    code = f"""
    import os, subprocess, sys, time, torch
    os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
    from tune_speed.runtime.process import HeldUp
    {before}
    held_up, end = HeldUp(torch.device("cpu")), time.monotonic() + {held_s}
    {beside}
    while time.monotonic() < end: pass
    print(held_up.frac())
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return float(done.stdout)


START = f"subprocess.Popen([sys.executable, '-c', {BUSY.format(s=3)!r}])"


@pytest.mark.slow
def test_a_thread_is_held_up_by_strangers_and_not_by_its_own_processes() -> None:
    # A process whose parent has ended is nobody's child.
    strange = f"subprocess.run(['setsid', '-f', sys.executable, '-c', {BUSY.format(s=3)!r}])"
    assert held_up_frac("", strange) > 0.25
    # Whatever else is at work here meanwhile: strangers are said to have used no core at all.
    nobody = "from tune_speed.runtime import process; process._others_cpu_s = lambda: 0.0"
    assert held_up_frac(nobody, START) == 0.0


@pytest.mark.slow
def test_a_thread_that_waits_for_nobody_is_not_held_up() -> None:
    asleep = "time.sleep(0.2); end = 0"
    assert held_up_frac("", asleep) < 0.5
    assert HeldUp(torch.device("cuda", 0))._delayed_s() == 0.0


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()  # Another test may have run a command here.
    gc.set_threshold(*process.USUAL)
    yield  # What is frozen stays so, imports above all: all later collections would take 0.4 s.
    gc.set_threshold(*thresholds)


def test_patient_collector_looks_seldom() -> None:
    process.make_patient()
    before = gc.get_stats()[0]["collections"]
    kept = [[number] for number in range(50_000)]
    assert gc.get_stats()[0]["collections"] - before <= 1, len(kept)


def test_settled_collector_is_the_usual_one_and_leaves_out_what_is_there() -> None:
    process.make_patient()
    assert gc.get_threshold() != process.USUAL
    kept, before = [[number] for number in range(10_000)], gc.get_freeze_count()
    process.settle()
    assert gc.get_threshold() == process.USUAL
    assert gc.get_freeze_count() - before > len(kept)


CHILD = "{call}\nprint('ready', flush=True)\nimport time; time.sleep(600)"
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""
CALL = "from tune_speed.runtime.process import end_with_parent; end_with_parent()"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a process with its parent")
@pytest.mark.parametrize(("call", "outlives"), [(CALL, False), ("", True)])
def test_frozen_process_ends_with_its_parent_if_told_so(call: str, outlives: bool) -> None:
    source = PARENT.format(child=CHILD.format(call=call))
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        try:
            child.suspend()
            parent.kill()
            parent.wait()
            deadline = time.monotonic() + (1 if outlives else 60)
            while is_alive(child) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert is_alive(child) == outlives
        finally:
            with suppress(psutil.NoSuchProcess):
                child.kill()
