"""What counts: the clocks of a run, of which `train_s` is the one that is compared.

| clock         | counts                                                         | role     |
|---------------|----------------------------------------------------------------|----------|
| `setup_s`     | data to the device, model and loader built                     | busy     |
| `compile_s`   | warm-up on dummy data, `torch.compile` included                | busy     |
| `train_s`     | batches made and augmented, forward, backward, optimizer step  | training |
| `eval_s`      | scheduled evaluations                                          | training |
| `measuring_s` | the isolated step time measured, waiting for the turn included | none     |
| `waiting_s`   | paused while somebody else measures                            |          |
| `wall_s`      | from the first line to the last, saving and the driver too     |          |

A resumed run resumes its clocks; what was done after the last checkpoint does not count. The device
is synchronised where a span begins and ends. The role is that at the turnstile: training lets
others measure between two steps, busy work keeps measurements from beginning.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

from tune_speed.core.records import Clocks, StepTime
from tune_speed.runtime import heartbeat
from tune_speed.runtime.turnstile import Turnstile

Span = Literal["setup_s", "compile_s", "train_s", "eval_s", "measuring_s"]
SPANS: tuple[Span, ...] = ("setup_s", "compile_s", "train_s", "eval_s", "measuring_s")
BUSY, TRAINING = ("setup_s", "compile_s"), ("train_s", "eval_s")

SHORTEST_METERED_S = 0.25
"""Counters of energy are renewed ten times a second or so: less says little of the power [s]."""


def mean_power_w(began_j: float | None, ended_j: float | None, took_s: float) -> float | None:
    """Returns (E₂ - E₁) / t [W]; None where it is not known, or the time too short to tell."""
    if began_j is None or ended_j is None or ended_j < began_j or took_s < SHORTEST_METERED_S:
        return None
    return (ended_j - began_j) / took_s


class Clock:
    """Adds up spans on a monotonic clock. One span at a time; `wall_s` runs from construction."""

    def __init__(
        self,
        *,
        synchronize: Callable[[], None],
        now: Callable[[], float] = time.perf_counter,
        turnstile: Turnstile | None = None,
        energy_j: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Starts `wall_s`. Without a turnstile nobody shares the device; `energy_j` is in J."""
        self._synchronize = synchronize
        self._now = now
        self._turnstile = turnstile or Turnstile(None, why_not="Nobody shares the device.")
        self._waited_before_s = self._turnstile.waited_s
        self._role = ExitStack()
        self._seconds: dict[Span, float] = dict.fromkeys(SPANS, 0.0)
        self.current: Span | None = None
        """The span that runs; None: none does."""
        self._started = self._born = now()
        self._energy_j: Callable[[], float | None] = energy_j
        self._began_j: float | None = None
        self._metered_j = self._metered_s = 0.0

    def start(self, span: Span) -> None:
        """Begins `span` once the device has done what was queued before."""
        assert self.current is None, f"{span} started while {self.current} runs"
        heartbeat.beat()
        self._synchronize()
        if span in BUSY:
            self._role.enter_context(self._turnstile.busy())
        if span in TRAINING:
            self._role.enter_context(self._turnstile.training())
        if span == "train_s":
            # Before the clock runs: NVML takes milliseconds to answer, which would count at every
            # evaluation.
            self._began_j = self._energy_j()
        self.current, self._started = span, self._now()

    def stop(self) -> None:
        """Ends the current span once the device has done what was queued in it."""
        assert self.current is not None, "no span runs"
        self._synchronize()
        took_s = self._now() - self._started
        heartbeat.beat()
        self._seconds[self.current] += took_s
        ended_j = self._energy_j() if self.current == "train_s" else None
        if self._began_j is not None and ended_j is not None:
            self._metered_j += ended_j - self._began_j
            self._metered_s += took_s
        self.current = None
        self._role.close()

    @property
    def power_w(self) -> float | None:
        """Mean power over spans of `train_s` here [W], pauses in them included; None: not known."""
        return mean_power_w(0.0, self._metered_j or None, self._metered_s)

    def switch(self, span: Span) -> None:
        """Ends the current span and begins `span`, or the same one once the device is done."""
        self.stop()
        self.start(span)

    @contextmanager
    def span(self, span: Span) -> Iterator[None]:
        self.start(span)
        try:
            yield
        finally:
            self.stop()

    def let_others_measure(self) -> None:
        """Pauses, off the clock, if somebody wants to measure; called between two steps."""
        heartbeat.beat()
        if not self._turnstile.must_wait():
            return
        assert self.current is not None, "no span runs"
        self._synchronize()
        self._seconds[self.current] += self._now() - self._started
        self._turnstile.wait()
        self._started = self._now()

    def release(self) -> None:
        """Ends a span that an error left running; does not wait for a device that may be broken."""
        if self.current is not None:
            self._seconds[self.current] += self._now() - self._started
        self.current = None
        self._role.close()

    def resume(self, earlier: Clocks) -> None:
        """Continues from another process's clocks; what passed in between does not count."""
        for span in SPANS:
            self._seconds[span] += getattr(earlier, span)
        self._waited_before_s -= earlier.waiting_s
        self._born -= earlier.wall_s

    def elapsed(self, span: Span) -> float:
        """Returns the seconds of `span` so far, without waiting for the device."""
        running = self._now() - self._started if self.current == span else 0.0
        return self._seconds[span] + running

    def clocks(self) -> Clocks:
        spans = {span: self.elapsed(span) for span in SPANS}
        waiting_s = self._turnstile.waited_s - self._waited_before_s
        return Clocks(**spans, waiting_s=waiting_s, wall_s=self._now() - self._born)


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
