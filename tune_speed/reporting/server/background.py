"""Work of an event loop that would block it."""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")

# Of a thread that draws: trainings on this machine come first.
NICENESS = 10


async def in_thread(function: Callable[[], Result], *, is_heavy: bool = False) -> Result:
    """Returns `function()`, called in a thread; raises what it raises.

    `is_heavy`: the thread leaves the processor to others.
    """
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
