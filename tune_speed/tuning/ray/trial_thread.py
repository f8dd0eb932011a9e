"""The thread in which a process trains its trials, so that no training waits for the driver."""

# One thread for all trials of a process: torch's settings, its thread pools and its device handles
# belong to a thread.

import queue
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from tune_speed.core.records import TrialRecord

Tell = Callable[[TrialRecord], None]
Work = Callable[[Tell], TrialRecord]


class End(NamedTuple):
    """How a trial ended."""

    record: TrialRecord | None = None
    """None where `error` says why."""
    error: BaseException | None = None
    is_hung: bool = False
    """Whether the thread is still in it."""


class TrialThread:
    """Runs trials, one after the other, and has the present one's newest record or its end."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._newest: TrialRecord | None = None
        self._end: End | None = None
        self._reported_s = float("-inf")
        self._number = 0
        self._trials: queue.SimpleQueue[tuple[int, Work]] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="training", daemon=True)
        self.thread.start()

    def begin(self, work: Work) -> None:
        """Begins a trial and returns at once; the one before it must have ended."""
        with self._changed:
            assert self._number == 0 or self._end is not None, "the trial before still runs"
            self._newest, self._end = None, None
            self._number += 1
            self._trials.put((self._number, work))

    def poll(self, *, timeout_s: float, every_s: float = 0.0) -> TrialRecord | End | None:
        """Returns the newest record, every `every_s` at most, or the end; None if nothing came."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            self._wait(lambda: self._newest is not None, deadline_s)
            # With a record there, wait for those that soon follow.
            self._wait(lambda: False, min(deadline_s, self._reported_s + every_s))
            if self._end is not None:
                return self._end
            newest, self._newest = self._newest, None
            if newest is not None:
                self._reported_s = time.monotonic()
            return newest

    def has_ended(self, *, timeout_s: float) -> bool:
        with self._changed:
            self._wait(lambda: False, time.monotonic() + timeout_s)
            return self._number == 0 or (self._end is not None and not self._end.is_hung)

    def give_up(self, end: End, *, keep: Callable[[], None] = lambda: None) -> bool:
        """Ends the trial with `end`; returns whether it still ran, and then calls `keep` first."""
        with self._changed:
            if self._end is not None:
                return False
            self._number += 1  # Later reports of the trial are ignored.
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

    def _run(self) -> None:
        while True:
            number, work = self._trials.get()
            end = self._run_trial(number, work)
            with self._changed:
                if number == self._number:
                    self._end = end
                    self._changed.notify_all()
            del work, end  # Nothing of a trial stays in memory until the next one.

    def _run_trial(self, number: int, work: Work) -> End:
        def tell(record: TrialRecord) -> None:
            with self._changed:
                if number == self._number:
                    self._newest = record
                    self._changed.notify_all()

        try:
            return End(record=work(tell))
        except Exception as error:  # Re-raised in the thread that polls.
            return End(error=error)
        except BaseException as error:  # Ray would take SystemExit for the actor's own.
            raised = RuntimeError(f"the trial raised {error!r}")
            return End(error=raised.with_traceback(error.__traceback__))
