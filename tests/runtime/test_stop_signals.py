"""What signals do is put back, whoever changed it in between."""

import signal
import threading

from tune_speed.runtime.process import handlers_kept, stop_signals

BOTH = (signal.SIGINT, signal.SIGUSR1)


def test_handlers_that_tune_leaves_behind_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGUSR1)
    with handlers_kept(*BOTH):
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGUSR1, lambda *_: None)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGUSR1)) == before


def test_in_another_thread_no_handler_is_touched() -> None:
    kept: list[object] = []

    def keep() -> None:
        with handlers_kept(*BOTH) as before:
            kept.append(before)

    thread = threading.Thread(target=keep)
    thread.start()
    thread.join()
    assert kept == [{}]


def test_first_signal_is_noted_and_a_second_acts_as_it_would_without() -> None:
    acted: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: acted.append(number))
    try:
        with stop_signals(*BOTH) as has_come:
            assert not has_come()
            signal.raise_signal(signal.SIGUSR1)
            assert has_come() and acted == []
            signal.raise_signal(signal.SIGUSR1)
            assert acted == [signal.SIGUSR1]
        signal.raise_signal(signal.SIGUSR1)
        assert acted == [signal.SIGUSR1] * 2
    finally:
        signal.signal(signal.SIGUSR1, before)
