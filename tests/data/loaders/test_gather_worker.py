import os
import socket
import threading
from collections.abc import Callable

import numpy as np
import pytest

from tune_speed.data.loaders.gather_worker import DONE, REQUEST, serve
from tune_speed.data.loaders.worker_pool import SharedArray, map_array


def test_requests_fill_their_slots_until_the_connection_closes(
    random_pixels: Callable[..., np.ndarray],
) -> None:
    pixels, slots = random_pixels(9, 2, 3, 1), np.zeros((2, 4, 2, 3, 1), np.uint8)
    indices = np.array([[8, 0, 8, 3], [1, 2, 7, 7]])
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=serve, args=(theirs, pixels, indices, slots))
    thread.start()
    with ours, theirs:
        assert ours.recv(1) == DONE  # ready
        for slot, size in ((1, 4), (0, 2)):
            ours.sendall(REQUEST.pack(slot, size))
            assert ours.recv(1) == DONE
        assert np.array_equal(slots[1], pixels[[1, 2, 7, 7]])
        assert np.array_equal(slots[0, :2], pixels[[8, 0]]) and not slots[0, 2:].any()
        ours.shutdown(socket.SHUT_WR)
        thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("system", ["Linux", "other"])
def test_what_one_writes_the_other_sees(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if system == "other":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    shared = SharedArray((3, 5), np.int64)
    other = map_array(shared.file, [3, 5], "<i8")
    shared.array[2, 4] = -7
    assert other[2, 4] == -7 and other.sum() == -7
    shared.close()
