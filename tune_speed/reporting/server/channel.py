"""What viewers are told while a page is open: read once for all of them, and drawn once."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from tune_speed.core.errors import ServiceError, StorageError

Result = TypeVar("Result")

# Of a thread that draws: trainings on this machine come first.
NICENESS = 10


async def in_thread(function: Callable[[], Result], *, is_heavy: bool = False) -> Result:
    """Returns `function()`, called in a thread; `is_heavy`: it leaves the processor to others."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(set_it: Callable[[], None]) -> None:
        # The loop is closed, or nobody waits any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if future.done() else set_it())

    def call() -> None:
        if is_heavy:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        try:
            result = function()
        except BaseException as error:
            found = error
            settle(lambda: future.set_exception(found))
        else:
            settle(lambda: future.set_result(result))

    # A daemon: Ctrl-C must not wait for a figure, or for a store that is away.
    threading.Thread(target=call, name="tune_speed-serve", daemon=True).start()
    return await future


# Seconds between two looks at a source, while something runs and otherwise.
PAUSE_S, QUIET_PAUSE_S = 2.0, 6.0
# Share of a processor's time that reading, or drawing one part again and again, may take.
SHARE = 0.05
# Parts that are stored; pages of trials come and go.
MOST_PARTS = 64


class Part(NamedTuple):
    """How a part of a page is made."""

    make: Callable[[], str]
    """Returns its one element as HTML; empty: there is nothing to show."""
    follows: str = "stamp"
    """Which stamp of a moment changes when it must be made again."""
    is_heavy: bool = False
    title: str = ""


class Made(NamedTuple):
    """A part that was made."""

    html: str
    stamp: str
    follows: str
    cost_s: float
    at_s: float
    """By the monotonic clock [s]."""
    again_s: float = 0.0
    """Seconds until it may be made anew, where it is not that of the present moment."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A source as it is."""

    facts: Mapping[str, Any]
    """What viewers are sent, with the stamps that parts follow: the same stamp, the same part."""
    part_of: Callable[[str], Part | None]
    """Returns how the part of a name is made; None: it has no such part."""
    is_live: bool
    """Whether it is about to change."""


class Channel:
    """One source, and whoever looks at it. For one event loop."""

    def __init__(self, read: Callable[[], Moment], *, heavy: asyncio.Lock) -> None:
        """`read` looks at the source, in a thread; `heavy` is held while a heavy part is made."""
        self.viewers = 0
        """Streams of `moments` that are open."""
        self._read, self._heavy = read, heavy
        self._moment: Moment | None = None
        self._reading: asyncio.Task[Moment] | None = None
        self._read_at_s = self._read_took_s = 0.0
        self._made: dict[str, Made] = {}
        self._making: dict[str, asyncio.Task[Made]] = {}

    async def now(self) -> Moment:
        """Returns a moment no older than the pause between two looks.

        Raises: what `read` raises, the first time; later that is a fact (`trouble`) of the moment
            before.
        """
        if self._moment is not None and time.monotonic() - self._read_at_s < self._pause_s:
            return self._moment
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._look())
        # Shielded, as others wait for it too.
        return await asyncio.shield(self._reading)

    async def moments(self, ending: asyncio.Event) -> AsyncIterator[Moment | None]:
        """Yields each new moment, and None where nothing has changed, until `ending` is set."""
        told: Moment | None = None
        self.viewers += 1
        try:
            while not ending.is_set():
                moment = await self.now()
                is_new = told is None or moment.facts != told.facts
                yield moment if is_new else None
                told = moment
                with suppress(TimeoutError):
                    await asyncio.wait_for(ending.wait(), self._pause_s)
        finally:
            self.viewers -= 1

    async def part(self, name: str) -> Made | None:
        """Returns a part or None; an older one while much changes: see `Made.again_s`."""
        moment = await self.now()
        part = moment.part_of(name)
        if part is None:
            return None
        made, stamp = self._made.get(name), str(moment.facts[part.follows])
        if made is not None:
            rest_s = made.cost_s / SHARE - (time.monotonic() - made.at_s) if moment.is_live else 0.0
            if made.stamp == stamp or rest_s > 0:
                return made._replace(again_s=0.0 if made.stamp == stamp else rest_s)
        if name not in self._making:
            self._making[name] = asyncio.ensure_future(self._make(name, part, stamp))
        return await asyncio.shield(self._making[name])

    @property
    def _pause_s(self) -> float:
        is_live = self._moment is not None and self._moment.is_live
        return max(PAUSE_S if is_live else QUIET_PAUSE_S, self._read_took_s / SHARE)

    async def _look(self) -> Moment:
        began_s = time.monotonic()
        try:
            self._moment = await in_thread(self._read)
        except (ServiceError, StorageError) as error:
            if self._moment is None:
                raise
            facts = {**self._moment.facts, "trouble": f"not fresh, asking again: {error}"}
            self._moment = replace(self._moment, facts=facts)
        finally:
            self._reading = None
            self._read_at_s = time.monotonic()
        self._read_took_s = self._read_at_s - began_s
        return self._moment

    async def _make(self, name: str, part: Part, stamp: str) -> Made:
        try:
            async with self._heavy if part.is_heavy else nullcontext():
                began_s = time.monotonic()
                html = await in_thread(part.make, is_heavy=part.is_heavy)
        finally:
            del self._making[name]
        ended_s = time.monotonic()
        self._made.pop(name, None)
        self._made[name] = made = Made(html, stamp, part.follows, ended_s - began_s, ended_s)
        if len(self._made) > MOST_PARTS:
            del self._made[next(iter(self._made))]
        return made
