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
    before: dict[signal.Signals, Any] = {}

    def hear(number: int, _frame: object) -> None:
        came.append(number)
        signal.signal(number, before[signal.Signals(number)])

    is_main = threading.current_thread() is threading.main_thread()
    for heard in numbers if is_main else ():
        before[heard] = signal.getsignal(heard)
        signal.signal(heard, hear)
    try:
        yield lambda: bool(came)
    finally:
        for heard, handler in before.items():
            signal.signal(heard, handler)
