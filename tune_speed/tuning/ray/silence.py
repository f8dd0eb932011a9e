"""Processes of trials that do not answer at all, seen from the driver.

One that hangs ends itself (`watchdog`) and says why. One that is frozen, or whose interpreter is
held by a library, can do neither: it sends no sign of life.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

MARGIN_S = 20.0
"""How much longer than a trial may hang a process may be silent [s]."""
START_S = 100.0
"""How much longer it may be before its first word [s]: on a busy node Python starts slowly."""
LOOK_EVERY_S = 1.0
LONGEST_LOOK_S = 5.0
"""What a look counts at most [s]: while the driver itself was frozen, nobody could be heard."""


class OwnTime:
    """Time in which this process could hear others: counted in looks, not read off a clock."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """Starts at zero, on a monotonic clock [s]."""
        self._now, self._looked_s = now, now()
        self.passed_s = 0.0

    def is_time_to_look(self) -> bool:
        """Returns whether the last look is long enough ago, and if so counts the time since."""
        since_s = self._now() - self._looked_s
        if since_s < LOOK_EVERY_S:
            return False
        self.passed_s += min(since_s, LONGEST_LOOK_S)
        self._looked_s += since_s
        return True


class Silence:
    """Kills processes from which nothing was heard for too long."""

    def __init__(self, *, limit_s: float, kill: Callable[[Any], None], time: OwnTime) -> None:
        """Begins to listen.

        Args:
            limit_s: how long a process may be silent.
            kill: ends a process, given its handle.
            time: of the driver.
        """
        self._limit_s, self._kill, self._time = limit_s, kill, time
        self._heard_s: dict[str, float] = {}

    def heard(self, name: str) -> None:
        """Takes note of a sign of life."""
        self._heard_s[name] = self._time.passed_s

    def look(self, handles: Mapping[str, Any]) -> tuple[str, ...]:
        """Kills whoever has been silent for too long and returns who that was.

        Args:
            handles: of all processes that have a trial, by name.
        """
        now_s = self._time.passed_s
        self._heard_s = {name: self._heard_s.get(name, now_s + START_S) for name in handles}
        silent = [name for name, at_s in self._heard_s.items() if now_s - at_s > self._limit_s]
        for name in silent:
            self._kill(handles[name])
            self.heard(name)  # Whatever becomes of it, once is enough for a while.
        return tuple(silent)


class Standstill:
    """Notices that trials wait for room and none runs, as after the loss of the last node."""

    def __init__(self, *, limit_s: float, time: OwnTime) -> None:
        """Begins to watch; `limit_s` is how long that may last."""
        self._limit_s, self._time = limit_s, time
        self._since_s: float | None = None

    def look(self, *, is_waiting: bool, is_running: bool) -> bool:
        """Returns whether it has lasted too long."""
        if not is_waiting or is_running:
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = self._time.passed_s
        return self._time.passed_s - self._since_s > self._limit_s
