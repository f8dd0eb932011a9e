"""What a worker process of the streaming loader runs: a script that needs nothing but NumPy.

And Pillow, where the images are decoded.
"""

# It starts in 0.2 s and takes 30 MiB, where a process that imports torch takes seconds and 300 MiB;
# and it does not import the user's main script, as multiprocessing would.

import fcntl
import json
import math
import mmap
import os
import runpy
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Slot to fill, and number of images; their indices are in shared memory.
REQUEST = struct.Struct("<qq")
DONE, DAMAGED = b".", b"!"

Pixels = NDArray[np.uint8]
Gather = Callable[[NDArray[np.int64], Pixels], Pixels]
"""Puts the images at some indices (B,) into the first places of a room, (B or more, H, W, C), and
returns these."""
DecodeInto = Callable[[bytes, Pixels], object]
"""Puts an encoded image into a box (H, W, C)."""


class Damaged(Exception):
    """A stored image cannot be decoded; the message says which, and why."""


def main(arguments: list[str]) -> None:
    # Ctrl-C is the training process's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sent = json.loads(arguments[0])
    arrays = {name: map_array(*array) for name, array in sent["arrays"].items()}
    indices, slots = arrays.pop("indices"), arrays.pop("slots")
    fill: Gather
    if sent["decoder"] is None:
        fill = partial(gather, arrays["source"])
    else:
        decode_into = runpy.run_path(sent["decoder"])["decode_into"]
        fill = partial(decode, arrays["source"], arrays["ends"], decode_into)
    with socket.socket(fileno=sent["socket"]) as connection:
        serve(connection, fill, indices, slots)


def serve(
    connection: socket.socket, fill: Gather, indices: NDArray[np.int64], slots: Pixels
) -> None:
    """Fills slots on request until the other end of `connection` closes, or its process dies.

    It sends `DONE` at the start and after each request; or `DAMAGED` and why, and ends. Slot s
    (batch size, H, W, C) gets the images `indices[s]`.
    """
    try:
        connection.sendall(DONE)
        while request := connection.recv(REQUEST.size, socket.MSG_WAITALL):
            slot, size = REQUEST.unpack(request)
            fill(indices[slot, :size], slots[slot])
            connection.sendall(DONE)
    except Damaged as error:
        connection.sendall(DAMAGED + str(error).encode())
    except ConnectionError:
        return


def gather(pixels: Pixels, indices: NDArray[np.int64], out: Pixels) -> Pixels:
    """Puts the images `indices` (B,) into the first places of `out`, and returns these."""
    # Without `clip` NumPy would go through a buffer, in case that an index is wrong.
    return np.take(pixels, indices, axis=0, out=out[: len(indices)], mode="clip")


def decode(
    encoded: Pixels,
    ends: NDArray[np.int64],
    decode_into: DecodeInto,
    indices: NDArray[np.int64],
    out: Pixels,
) -> Pixels:
    """Does the same to files that lie one after the other in `encoded`, and where each ends.

    Raises: Damaged if one is no image that fits its box.
    """
    room = out[: len(indices)]
    for index, box in zip(indices.tolist(), room, strict=True):
        start = ends[index - 1] if index else 0
        try:
            decode_into(encoded[start : ends[index]].tobytes(), box)
        except Exception as error:
            # Pillow's readers raise almost anything on damaged files.
            raise Damaged(f"image number {index}: {error}") from error
    return room


def map_array(file: int, shape: Sequence[int], dtype: str, offset: int = 0) -> NDArray[Any]:
    """Returns an open file's content from `offset` on as an array, writable if the file is."""
    is_writable = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    mapped = mmap.mmap(file, 0, access=mmap.ACCESS_WRITE if is_writable else mmap.ACCESS_READ)
    return np.frombuffer(mapped, dtype, math.prod(shape), offset).reshape(shape)


if __name__ == "__main__":
    main(sys.argv[1:])
