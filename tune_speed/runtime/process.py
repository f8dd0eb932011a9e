"""The process itself: its garbage collector, its signals, and its end with its parent."""

import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

USUAL = gc.get_threshold()
# The collector looks through all that is imported again and again: of 3.4 s that the libraries of a
# search take to import, it takes a fifth.
# Objects that are made before it looks through the young ones, and how often it does that before it
# looks through older ones; Python's own are 700, 10 and 10.
PATIENT = (100_000, 50, 50)


def make_patient() -> None:
    """Makes the collector run seldom: for a process that imports much, or that soon ends."""
    gc.set_threshold(*PATIENT)


def settle() -> None:
    """Restores the usual thresholds, and exempts what is there now: mostly modules, which stay."""
    # Each look at them takes 0.25 s with torch.
    gc.freeze()
    gc.set_threshold(*USUAL)


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
    """Yields whether one of these signals came, which act at the next look and not in mid-sentence.

    An exception that a signal raises anywhere may come out of a library as another one. A second
    one of the same kind acts at once, as it would without. Outside of the main thread, which alone
    gets signals, none is heard.
    """
    came: list[int] = []
    with handlers_kept(*numbers) as before:

        def hear(number: int, _frame: object) -> None:
            came.append(number)
            signal.signal(number, before[signal.Signals(number)])

        for heard in before:
            signal.signal(heard, hear)
        yield lambda: bool(came)


@contextmanager
def handlers_kept(*numbers: signal.Signals) -> Iterator[dict[signal.Signals, Any]]:
    """Puts back what these signals do now as the block ends; yields it, by signal.

    None of them outside of the main thread: no other one may say what a signal does. Nor is one
    whose handler is not of Python's making, as Python cannot put it back.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in numbers if is_main}
    before = {number: handler for number, handler in handlers.items() if handler is not None}
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
