"""The process itself: its garbage collector, its waits for a core, its signals, its end."""

import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tune_speed.core.text import counted

if TYPE_CHECKING:
    import torch

USUAL = gc.get_threshold()
# The collector looks through all that is imported again and again: of 3.4 s that the libraries of a
# search take to import, it takes a fifth.
# Objects that are made before it looks through the young ones, and how often it does that before it
# looks through older ones; Python's own are 700, 10 and 10.
PATIENT = (100_000, 50, 50)


def make_patient() -> None:
    gc.set_threshold(*PATIENT)


def settle() -> None:
    """Restores the usual thresholds, and exempts what is there now: mostly modules, which stay."""
    # Each look at them takes 0.25 s with torch.
    gc.freeze()
    gc.set_threshold(*USUAL)


def cpu_wait_s(*, since: float | None = 0.0) -> float | None:
    """Returns how long this process' threads have waited for a core `since` then [s], if known."""
    # Linux counts it, in nanoseconds, as the second figure of each thread's `schedstat`.
    try:
        stats = [path.read_text() for path in Path("/proc/self/task").glob("*/schedstat")]
        waited_s = sum(int(stat.split()[1]) for stat in stats) / 1e9
    except (OSError, ValueError, IndexError):
        # A thread ended, or another system.
        return None
    # Threads that ended took theirs along.
    return max(0.0, waited_s - since) if stats and since is not None else None


def run_delay(device: "torch.device") -> Callable[[], float]:
    """Returns a call for how long the thread has waited for a core [s]; 0.0: a GPU, or unknown."""
    file = Path("/proc/thread-self/schedstat")
    if device.type != "cpu" or not file.exists():
        return lambda: 0.0
    return lambda: int(file.read_bytes().split()[1]) / 1e9


MOST_DELAYED = 0.1
"""Share of a time that its thread waits for a core, from which on strangers disturbed it."""


class HeldUp:
    """How much strangers have held up the calling thread since this was made."""

    def __init__(self, device: "torch.device") -> None:
        self._delayed_s = run_delay(device)
        self._before = self._delayed_s(), _others_cpu_s(), time.monotonic()

    def frac(self) -> float:
        """Returns for which share of the time others had its core; 0.0: not known, or a GPU."""
        delayed_s, others_s, began_s = self._before
        waited_s = self._delayed_s() - delayed_s
        if waited_s <= 0:
            return 0.0
        # It may also have waited for its own process.
        waited_s = max(0.0, min(waited_s, _others_cpu_s() - others_s))
        return waited_s / max(time.monotonic() - began_s, waited_s)


def busy_text(threads: int) -> str:
    """Returns that other programs leave too few cores for so many threads; empty if they do not."""
    cores = psutil.cpu_count() or 1
    busy = psutil.cpu_percent(0.5) / 100 * cores
    used = f"other programs use {busy:.1f} of {counted(cores, 'core')}"
    is_enough = cores - busy >= (1 - MOST_DELAYED) * threads
    return "" if is_enough else f"{used}, and runs that they disturb are not certified"


def _others_cpu_s() -> float:
    every, own = psutil.cpu_times()._asdict(), psutil.Process()
    # Guests are part of `user`.
    idle = ("idle", "iowait", "guest", "guest_nice")
    others_s = sum(value for name, value in every.items() if name not in idle)
    others_s -= sum(own.cpu_times()[:4])
    for child in own.children(recursive=True):
        with suppress(psutil.Error):
            others_s -= sum(child.cpu_times()[:4])
    return float(others_s)


# From linux/prctl.h.
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Has the kernel kill this process when the thread that started it ends; on Linux only."""
    # Most notice by themselves that their parent is gone; one that is frozen, or whose interpreter
    # a library holds, cannot.
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It went before the kernel knew.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def stop_signals(*numbers: signal.Signals) -> Iterator[Callable[[], bool]]:
    """Yields, in the main thread, whether one of these signals came; a second one acts as ever."""
    came: list[int] = []
    with handlers_kept(*numbers) as before:

        def hear(number: int, _frame: object) -> None:
            came.append(number)
            signal.signal(number, before[signal.Signals(number)])

        for heard in before:
            signal.signal(heard, hear)
        yield lambda: bool(came)


@contextmanager
def ends_as_ctrl_c() -> Iterator[None]:
    """Makes SIGTERM, and the end of the terminal, what Ctrl-C is, where each ends the process."""
    with handlers_kept(signal.SIGTERM, signal.SIGHUP) as before:
        for number, handler in before.items():
            if handler is signal.SIG_DFL:
                signal.signal(number, signal.default_int_handler)
        yield


@contextmanager
def handlers_kept(*numbers: signal.Signals) -> Iterator[dict[signal.Signals, Any]]:
    """Yields what these signals do now, in the main thread, and puts it back as the block ends."""
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in numbers if is_main}
    before = {number: handler for number, handler in handlers.items() if handler is not None}
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
