"""Trials train in a thread of their own, so that no training waits for the driver.

It is one thread for all trials of a process, as torch's settings, its pools of threads and its
handles of the device belong to a thread.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from tune_speed.core.records import TrialRecord

Tell = Callable[[TrialRecord], None]
"""Takes a trial's record so far."""
Work = Callable[[Tell], TrialRecord]
"""Runs a trial; returns its record."""


class End(NamedTuple):
    """How a trial ended."""

    record: TrialRecord | None = None
    """None where `error` says why."""
    error: BaseException | None = None
    is_hung: bool = False
    """Whether the thread is still in it."""


class TrialThread:
    """Runs trials, one after the other, and knows how the present one stands."""

    def __init__(self) -> None:
        """Starts the thread; it ends with the process."""
        self._changed = threading.Condition()
        self._newest: TrialRecord | None = None
        self._end: End | None = None
        self._reported_s = float("-inf")
        self._number = 0
        self._trials: queue.SimpleQueue[tuple[int, Work]] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run_all, name="training", daemon=True)
        self.thread.start()

    def begin(self, work: Work) -> None:
        """Begins a trial and returns at once; the one before it must have ended."""
        with self._changed:
            assert self._number == 0 or self._end is not None, "the trial before still runs"
            self._newest, self._end = None, None
            self._number += 1
            self._trials.put((self._number, work))

    def news(self, *, timeout_s: float, every_s: float = 0.0) -> TrialRecord | End | None:
        """Returns the trial's record so far where it is new, or its end; None if nothing came.

        A record comes `every_s` at most: evaluations that come faster are told together.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            self._wait(lambda: self._newest is not None, deadline_s)
            # Once something is there, what follows soon goes with it.
            self._wait(lambda: False, min(deadline_s, self._reported_s + every_s))
            if self._end is not None:
                return self._end
            newest, self._newest = self._newest, None
            if newest is not None:
                self._reported_s = time.monotonic()
            return newest

    def has_ended(self, *, timeout_s: float) -> bool:
        """Returns whether the trial ends in time."""
        with self._changed:
            self._wait(lambda: False, time.monotonic() + timeout_s)
            return self._number == 0 or (self._end is not None and not self._end.is_hung)

    def give_up(self, end: End, *, keep: Callable[[], None] = lambda: None) -> bool:
        """Ends the trial as `end` says, whatever the thread does; returns whether it still ran.

        `keep` is called first where it did, so that nobody hears of an end that is not yet kept.
        """
        with self._changed:
            if self._end is not None:
                return False
            self._number += 1  # Whatever the trial itself still says is not heard.
            keep()
            self._end = end
            self._changed.notify_all()
            return True

    def _wait(self, is_enough: Callable[[], bool], deadline_s: float) -> None:
        """Waits, holding the lock, until the trial ended, or `is_enough`, or time is up."""
        while self._end is None and not is_enough():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            self._changed.wait(left_s)

    def _run_all(self) -> None:
        while True:
            self._run(*self._trials.get())

    def _run(self, number: int, work: Work) -> None:
        """Runs a trial to its end. What it held is free when its end is told."""
        try:
            end = End(record=work(lambda record: self._tell(number, record)))
        except Exception as error:  # Carried to the thread that asks.
            end = End(error=error)
        except BaseException as error:  # Ray would take it for its own.
            end = End(
                error=RuntimeError(f"the trial raised {error!r}").with_traceback(
                    error.__traceback__
                )
            )
        with self._changed:
            if number == self._number:
                self._end = end
                self._changed.notify_all()

    def _tell(self, number: int, record: TrialRecord) -> None:
        with self._changed:
            if number == self._number:
                self._newest = record
                self._changed.notify_all()
