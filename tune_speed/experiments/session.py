"""Runs in turns, which certifications, ablations and comparisons of recipes have in common.

Arms take turns with common seeds, so that a machine that drifts meanwhile favours none. Each run is
a JSON line, on disk before the next begins: the same command resumes after the last one.
"""

import signal
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tune_speed.core.event_log import MisplacedEvent, SessionLog
from tune_speed.core.records import TrialRecord
from tune_speed.runtime.process import stop_signals


def balanced_order(arms: Sequence[str], *, block: int) -> tuple[str, ...]:
    """Returns the order in which a block runs the arms, so that none is always early or late.

    Of k arms, block 2i runs 0, 1, k-1, 2, k-2, ... shifted by i (mod k), and block 2i + 1 the same
    backwards. After each pair of blocks all arms have had the same mean position; after 2k blocks
    each has had each position twice, and each has come right after each other one twice.

    Source: Williams 1949, Experimental designs balanced for the estimation of residual effects of
    treatments; there backwards only for an odd k, and not in pairs.
    """
    num = len(arms)
    assert num == len(set(arms)), arms
    zigzag = [(index + 1) // 2 if index % 2 else -(index // 2) for index in range(num)]
    order = tuple(arms[(step + block // 2) % num] for step in zigzag)
    # Backwards in each second block, for an even k too: each pair evens out the arms' positions.
    return order[::-1] if block % 2 else order


def rounds(arms: Sequence[str], seeds: Iterable[int]) -> Iterator[tuple[int, int, str]]:
    """Yields block, seed and arm of each run: every arm once with each seed."""
    for block, seed in enumerate(seeds):
        yield from ((block, seed, arm) for arm in balanced_order(arms, block=block))


def left_text(num: int, done: Iterable[TrialRecord], *, most: bool = False) -> str:
    """Returns `3 to go, about 2 min`, at the mean wall clock of the runs done, or `the last`."""
    if not num:
        return "the last"
    took_s = [record.runs[-1].clocks.wall_s for record in done]
    minutes = num * statistics.fmean(took_s or [0.0]) / 60
    about = f", about {minutes:.0f} min" if minutes >= 1 else ""
    return f"{'at most ' if most else ''}{num} to go{about}"


@dataclass
class Stop:
    """Whether the user stopped a session."""

    came: Callable[[], bool] = lambda: False
    """Whether Ctrl-C came: a run asks it, to end early."""
    was_stopped: bool = False


@contextmanager
def stoppable(stopped: type[Exception], *signals: signal.Signals) -> Iterator[Stop]:
    """Ends the block at Ctrl-C, or where a run that was stopped raises `stopped`."""
    stop = Stop()
    try:
        with stop_signals(*(signals or (signal.SIGINT,))) as stop.came:
            yield stop
    except (KeyboardInterrupt, stopped):
        stop.was_stopped = True


class RunLog(SessionLog):
    """An open log of a session, held by one process at a time: an event a run, with its record."""

    kinds: ClassVar[Mapping[str, type[Any]]]
    """Events of runs, with the tuple that names such a run: the event's fields."""

    def __init__(self, path: Path) -> None:
        self.records: dict[Any, TrialRecord] = {}
        """By the run's name, in the order in which they ran."""
        super().__init__(path)

    def add(self, run: Any, record: TrialRecord) -> None:
        """Writes a run. Raises: StorageError."""
        event = next(event for event, kind in self.kinds.items() if type(run) is kind)
        self.append(event, **run._asdict(), record=record.model_dump(mode="json"))
        self.records[run] = record

    def of(self, kind: type[Any]) -> dict[Any, TrialRecord]:
        return {run: record for run, record in self.records.items() if isinstance(run, kind)}

    def take(self, kind: str, event: dict[str, Any]) -> None:
        if kind not in self.kinds:
            raise MisplacedEvent(f"{self.what} has no event {kind!r}")
        record = TrialRecord.model_validate(said := event.pop("record"))
        run = self.kinds[kind](**event)
        self._log.is_new(f"the run {event}", said)
        self.records[run] = record
