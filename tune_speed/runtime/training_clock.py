"""The training clock of a run that shared its device: a sum over phases, not what passed."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from tune_speed.core.records import StepTime


@dataclass
class Phase:
    """A stretch of a run whose steps have one shape, hence one throughput key."""

    step_time: StepTime
    samples_per_step: int
    """Effective batch size."""
    samples: int = 0
    """Training samples seen in it so far."""


def isolated_train_s(phases: Iterable[Phase], *, other_s: float = 0.0) -> float:
    """Returns Σ (samples / samples per step) · isolated seconds of a step, over phases, + other."""
    return other_s + sum(p.samples / p.samples_per_step * p.step_time.step_s for p in phases)


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
    """Returns 1 - waited / wall, the share of time with a batch; None where no time has passed."""
    assert 0 <= waited_s <= wall_s, (waited_s, wall_s)
    return 1 - waited_s / wall_s if wall_s else None
