"""Ends a trial that hangs, from within its own process.

Its time is counted in looks, not read off a clock, so that a process that was frozen from outside
has all of it left when it goes on: that is no fault of the trial's.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress

import psutil

from tune_speed.runtime import heartbeat

LOOKS = 20
"""How often it looks within the time that a trial may show no sign of life."""
LONGEST_LOOK_S = 5.0


class Watchdog:
    """A thread that counts for how long there has been no sign of life."""

    def __init__(self, *, on_hang: Callable[[str, float], None]) -> None:
        """Starts the thread; it watches nothing before `watch`.

        Args:
            on_hang: called once in the thread, with the stacks of all threads and the seconds
                without a sign of life.
        """
        self._on_hang = on_hang
        self._limit_s: float | None = None
        self._beats, self._quiet_s = heartbeat.beats(), 0.0
        self._changed = threading.Event()
        threading.Thread(target=self._look_on, name="watchdog", daemon=True).start()

    def watch(self, *, limit_s: float) -> None:
        """Begins to count anew; after `limit_s` without a sign of life it calls `on_hang`."""
        self._quiet_s, self._limit_s = 0.0, limit_s
        self._changed.set()

    def rest(self) -> None:
        """Stops counting."""
        self._limit_s = None

    def _look_on(self) -> None:
        while True:
            limit_s = self._limit_s
            pause_s = LONGEST_LOOK_S if limit_s is None else min(limit_s / LOOKS, LONGEST_LOOK_S)
            if self._changed.wait(None if limit_s is None else pause_s):
                self._changed.clear()
                continue
            self._look(pause_s)

    def _look(self, passed_s: float) -> None:
        beats, limit_s = heartbeat.beats(), self._limit_s
        self._quiet_s = self._quiet_s + passed_s if beats == self._beats else 0.0
        self._beats = beats
        if limit_s is not None and self._quiet_s > limit_s - passed_s / 2:
            self._limit_s = None
            self._on_hang(stacks(), self._quiet_s)


def stacks() -> str:
    """Returns where each thread of this process is, as a traceback has it."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    texts = []
    for ident, frame in sys._current_frames().items():
        where = "".join(traceback.format_stack(frame))
        texts.append(f"Thread {names.get(ident, 'unknown')} ({ident}):\n{where}")
    return "\n".join(sorted(texts, key=lambda text: not text.startswith("Thread training")))


def leave(code: int = 1) -> None:
    """Ends this process at once, whatever its threads do, and before it all that it started."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # It is gone already.
            child.kill()
    os._exit(code)
