"""Signals that ask for an end, as a flag: what runs looks at it where it can stop."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals(*numbers: signal.Signals) -> Iterator[Callable[[], bool]]:
    """Yields whether one of these signals came, which act at the next look and not in mid-sentence.

    An exception that a signal raises anywhere may come out of a library as another one. Outside of
    the main thread, which alone gets signals, none is heard.
    """
    came: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    heard = numbers if is_main else ()
    before = [signal.signal(number, lambda number, _: came.append(number)) for number in heard]
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in zip(heard, before, strict=True):
            signal.signal(number, handler)
