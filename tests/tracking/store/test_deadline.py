import threading
import time

import pytest

from tune_speed.tracking.store.deadline import within


def test_gives_the_result_or_the_error() -> None:
    assert within(5, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(5, lambda: 1 // 0)


def test_none_is_a_result() -> None:
    assert within(5, lambda: None) is None


def test_waits_no_longer_than_asked() -> None:
    never = threading.Event()
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"0\.1 s"):
        within(0.1, never.wait)
    assert time.monotonic() - start < 2
    never.set()
