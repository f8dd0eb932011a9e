"""Signals that ask for an end, as a flag: what runs looks at it where it can stop."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stop_signals(*numbers: signal.Signals) -> Iterator[Callable[[], bool]]:
    """Yields whether one of these signals came, which act at the next look and not in mid-sentence.

    An exception that a signal raises anywhere may come out of a library as another one. A second
    one of the same kind acts at once, as it would without. Outside of the main thread, which alone
    gets signals, none is heard.
    """
    came: list[int] = []
    with handlers_kept(*numbers) as before:

        def hear(number: int, _frame: object) -> None:
            came.append(number)
            signal.signal(number, before[signal.Signals(number)])

        for heard in before:
            signal.signal(heard, hear)
        yield lambda: bool(came)


@contextmanager
def handlers_kept(*numbers: signal.Signals) -> Iterator[dict[signal.Signals, Any]]:
    """Puts back what these signals do now as the block ends; yields it, by signal.

    None of them outside of the main thread: no other one may say what a signal does. Nor is one
    whose handler is not of Python's making, as Python cannot put it back.
    """
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in numbers if is_main}
    before = {number: handler for number, handler in handlers.items() if handler is not None}
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
