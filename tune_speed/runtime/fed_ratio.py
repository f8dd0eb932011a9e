"""How long the training loop waits for its batches: what a better-fed device would win.

`Waits` is put around the iterator of batches. What is counted is the host's time in `next()`:
gathering, waiting for workers, copying, and the augmentation as far as it runs then and there. On a
CPU that is all of the batch's making. On a GPU the host runs ahead and only launches work, so a
wait hides as long as the device has work queued, and counts where the queue is full: there the fed
ratio is exact only if the device is synchronised each step, as `serving` does.
"""

import time
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

Batch = TypeVar("Batch")


class Waits:
    """Adds up the host's time blocked in `next()`, over all iterators given to it."""

    def __init__(self, *, now: Callable[[], float] = time.perf_counter) -> None:
        self.waited_s = 0.0
        """Time in `next()` so far [s], the last one of each iterator included."""
        self._now = now

    def over(self, batches: Iterator[Batch]) -> Generator[Batch]:
        """Yields what `batches` yields; its own cost is two readings of the clock a batch."""
        while True:
            began = self._now()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self.waited_s += self._now() - began
            yield batch


def fed_ratio(*, waited_s: float, wall_s: float) -> float | None:
    """Returns 1 - waited / wall, in [0, 1]: the share of time with a batch to work on.

    None where no time has passed.
    """
    assert 0 <= waited_s <= wall_s, (waited_s, wall_s)
    return 1 - waited_s / wall_s if wall_s else None
