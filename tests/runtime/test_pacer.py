"""How far the host runs ahead of a device that it gives work to."""

import pytest
import torch
from helpers.training.tiny import CPU

from tune_speed.runtime.device import STEPS_AHEAD, pacer


class Queue:
    """A device whose steps end when the host waits for them, and not before."""

    num_queued = num_done = 0


class Event:
    """Ends with the steps that were queued when it was recorded."""

    def __init__(self, *, blocking: bool) -> None:
        assert blocking

    def record(self, stream: str) -> None:
        assert stream == "current"
        self.after = Queue.num_queued

    def synchronize(self) -> None:
        Queue.num_done = max(Queue.num_done, self.after)


def test_host_is_few_steps_ahead_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: "current")
    keep_pace, ahead = pacer(torch.device("cuda", 0)), []
    for _ in range(50):
        Queue.num_queued += 1
        keep_pace()
        ahead.append(Queue.num_queued - Queue.num_done)
    # Some steps stay queued, so that the device never waits for the host.
    assert 2 <= STEPS_AHEAD <= 4
    assert max(ahead) == ahead[-1] == STEPS_AHEAD


def test_nothing_is_ahead_of_a_cpu() -> None:
    assert pacer(CPU)() is None
