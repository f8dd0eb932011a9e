"""What counts: five clocks, of which `train_s` is the one that is compared.

| clock       | counts                                                                     |
|-------------|----------------------------------------------------------------------------|
| `setup_s`   | data to the device, model and loader built                                 |
| `compile_s` | warm-up on dummy data, `torch.compile` included                            |
| `train_s`   | batches made and augmented, forward, backward, optimizer step              |
| `eval_s`    | scheduled evaluations                                                      |
| `wall_s`    | everything from the first line to the last, waiting for the driver included |

The device is synchronised where a span begins and ends, and nowhere else.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from tune_speed.records import Clocks

Span = Literal["setup_s", "compile_s", "train_s", "eval_s"]


class Clock:
    """Adds up spans on a monotonic clock. One span at a time; `wall_s` runs from construction."""

    def __init__(
        self, *, synchronize: Callable[[], None], now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._synchronize = synchronize
        self._now = now
        self._seconds: dict[Span, float] = dict.fromkeys(
            ("setup_s", "compile_s", "train_s", "eval_s"), 0.0
        )
        self._current: Span | None = None
        self._started = self._born = now()

    def start(self, span: Span) -> None:
        """Begins `span` once the device has done what was queued before."""
        assert self._current is None, f"{span} started while {self._current} runs"
        self._synchronize()
        self._current, self._started = span, self._now()

    def stop(self) -> None:
        """Ends the current span once the device has done what was queued in it."""
        assert self._current is not None, "no span runs"
        self._synchronize()
        self._seconds[self._current] += self._now() - self._started
        self._current = None

    @contextmanager
    def span(self, span: Span) -> Iterator[None]:
        """Counts the block as `span`, also when it raises."""
        self.start(span)
        try:
            yield
        finally:
            self.stop()

    def elapsed(self, span: Span) -> float:
        """Returns the seconds of `span` so far, without waiting for the device."""
        running = self._now() - self._started if self._current == span else 0.0
        return self._seconds[span] + running

    def clocks(self) -> Clocks:
        """Returns all five clocks; a span still running counts up to now."""
        spans = {span: self.elapsed(span) for span in self._seconds}
        return Clocks(**spans, wall_s=self._now() - self._born)
