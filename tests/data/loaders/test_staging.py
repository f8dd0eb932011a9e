from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tune_speed.data.loaders.streaming import NUM_BUFFERS, Fill, Staging

CPU = torch.device("cpu")
Log = list[tuple[Any, ...]]


def numbered(sizes: list[int], log: Log | None = None) -> Fill:
    numbers = iter(range(len(sizes)))

    def fill(room: np.ndarray) -> int:
        number = next(numbers, None)
        if number is None:
            return 0
        room[: sizes[number]] = number
        if log is not None:
            log.append(("fill", number, room.ctypes.data))
        return sizes[number]

    return fill


def staging() -> Staging:
    return Staging((4, 2, 2, 3), device=CPU, is_pinned=False)


@pytest.mark.parametrize("sizes", [[], [4], [4, 4], [4, 4, 4, 1]])
def test_batches_come_in_order_and_in_their_sizes(sizes: list[int]) -> None:
    came = [(len(b), set(b.flatten().tolist())) for b in staging().ahead(numbered(sizes))]
    assert came == [(size, {number}) for number, size in enumerate(sizes)]


def test_each_batch_is_given_once_the_next_is_under_way() -> None:
    log: Log = []
    batches = staging().ahead(numbered([4, 4, 4], log))
    next(batches)
    assert [number for _, number, _ in log] == [0, 1]
    next(batches)
    assert [number for _, number, _ in log] == [0, 1, 2]
    next(batches)
    assert next(batches, None) is None


def test_batch_holds_until_the_next_is_asked_for_and_buffers_are_used_again() -> None:
    log: Log = []
    for number, batch in enumerate(staging().ahead(numbered([4] * 6, log))):
        assert batch.eq(number).all()
    assert len({place for *_, place in log}) == NUM_BUFFERS


def test_beginning_anew_forgets_what_was_under_way() -> None:
    one = staging()
    abandoned = one.ahead(numbered([4] * 5))
    next(abandoned)
    assert [int(b[0, 0, 0, 0]) for b in one.ahead(numbered([4, 2]))] == [0, 1]


def test_error_of_the_source_passes() -> None:
    def fail(room: np.ndarray) -> int:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        next(staging().ahead(fail))


def recording_module(log: Log) -> Any:
    """Returns torch's streams and events for CPUs, which log what is asked of them."""
    numbers: Iterator[int] = iter(range(99))

    class Event(torch.cpu.Event):
        def __init__(self) -> None:
            self.number = next(numbers)

        def synchronize(self) -> None:
            log.append(("host waits", self.number))

        def record(self, stream: Any = None) -> None:
            log.append(("record", self.number, stream is torch.cpu.current_stream()))

    class Stream(torch.cpu.Stream):
        def wait_event(self, event: Any) -> None:
            log.append(("stream waits", event.number))

    computing = Stream()

    def current_stream(device: torch.device) -> Stream:
        return computing

    return SimpleNamespace(
        Event=Event, Stream=Stream, stream=torch.cpu.stream, current_stream=current_stream
    )


@pytest.fixture
def log_of_order(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Log]:
    def run(num_batches: int) -> Log:
        log: Log = []
        module = recording_module(log)
        monkeypatch.setattr(torch, "get_device_module", lambda device: module)
        for _ in staging().ahead(numbered([4] * num_batches, log)):
            log.append(("compute",))
        return [("fill", entry[1]) if entry[0] == "fill" else entry for entry in log]

    return run


def test_buffer_is_filled_only_after_the_host_waited_for_its_last_copy(log_of_order):
    order = log_of_order(4)
    for number in range(4):
        at = order.index(("fill", number))
        assert order[at - 1] == ("host waits", number % NUM_BUFFERS)
        assert order[at + 1] == ("record", number % NUM_BUFFERS, True)  # on the copying stream


def test_device_waits_for_a_batch_that_is_computed_on_and_the_host_does_not(log_of_order):
    order = log_of_order(3)
    computed = [at for at, entry in enumerate(order) if entry == ("compute",)]
    assert [order[at - 1] for at in computed] == [("stream waits", n % 2) for n in range(3)]
