"""What a search knows of step times: all windows, pooled, and which kind is to be timed again."""

import math
from collections.abc import Iterable, Sequence

from tune_speed.core.records import RunResult, StepTime
from tune_speed.runtime.pooled_times import pooled

WINDOW_S = 1.0
"""What one more window costs about, with the wait for the turn [s]."""
SHARE = 0.01
"""Of a search's time that goes to windows of kinds that were timed before."""
MOST_WINDOWS = 6
"""Of one kind."""
AGE_S = 20.0
"""A kind with n windows is timed again once the last is n times so old [s]."""


class WindowHistory:
    """All windows of a search, of earlier ones too."""

    def __init__(self, study: str, windows: Iterable[StepTime]) -> None:
        """Begins with what earlier studies, or sessions, measured."""
        self._study, self._prefix = study, f"{study}/"
        self._windows: dict[tuple[str, str, str], StepTime] = {}
        self._last_s: dict[str, float] = {}
        """When the last window of each key came, on the search's clock [s]."""
        self._usual: dict[str, float] = {}
        """The machine's speed by place at which times are told during the search."""
        self._pooled: dict[str, StepTime] | None = None
        self._add(windows, now_s=-math.inf)

    def add(self, run: RunResult, *, now_s: float = -math.inf) -> None:
        """Takes what a trial measured; the first says at which speed the search tells times.

        `now_s` are seconds of this session; of earlier ones nothing says how long ago they were.
        """
        self._add(run.windows, now_s=now_s)
        for each in run.step_times:
            if each.reference_s and each.place:
                self._usual.setdefault(each.place, each.reference_s)

    def _add(self, windows: Iterable[StepTime], *, now_s: float) -> None:
        for each in windows:
            mark = each.measured_in, each.key, each.measured_at
            if mark not in self._windows:
                self._windows[mark], self._pooled = each, None
                self._last_s[each.key] = now_s

    def pooled(self) -> dict[str, StepTime]:
        """Returns the step time of each key, at one speed for the whole search."""
        if self._pooled is None:
            windows = self._windows.values()
            self._pooled = pooled(windows, study=self._study, usual=self._usual)
            for each in self._pooled.values():
                if each.reference_s and each.measured_in.startswith(self._prefix):
                    self._usual.setdefault(each.place, each.reference_s)
        return self._pooled

    def settled(self, windows: Sequence[StepTime] = ()) -> dict[str, StepTime]:
        """Returns the step times by all windows, at the median speed that the search saw."""
        self._add(windows, now_s=math.inf)
        self._usual.clear()
        self._pooled = None
        return self.pooled()

    def due(self, *, now_s: float) -> tuple[str, ...]:
        """Returns the keys that are worth another window, `now_s` after the session's start.

        A kind is, if its windows were disturbed or the last is old; all together keep to their
        share of the time.
        """
        own = [each for each in self._windows.values() if each.measured_in.startswith(self._prefix)]
        again = len(own) - len({each.key for each in own})
        if (again + 1) * WINDOW_S > SHARE * now_s:
            return ()

        def is_due(each: StepTime) -> bool:
            n = 0 if each.disturbed else each.num_windows
            return n < MOST_WINDOWS and now_s - self._last_s[each.key] >= n * AGE_S

        return tuple(key for key, each in self.pooled().items() if is_due(each))
