"""How long a process, and its thread, wait for a core, and how much of that strangers caused."""

import subprocess
import sys
import textwrap

import pytest
import torch

from tune_speed.runtime.process import HeldUp, cpu_wait_s

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
