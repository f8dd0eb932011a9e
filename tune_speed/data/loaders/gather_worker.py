"""What a worker process of the streaming loader runs: a script that needs nothing but NumPy."""

# It starts in 0.2 s and takes 30 MiB, where a process that imports torch takes seconds and 300 MiB;
# and it does not import the user's main script, as multiprocessing would.

import fcntl
import json
import math
import mmap
import os
import signal
import socket
import struct
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Slot to fill, and number of images; their indices are in shared memory.
REQUEST = struct.Struct("<qq")
DONE = b"."


def main(arguments: list[str]) -> None:
    # Ctrl-C is the training process's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sent = json.loads(arguments[0])
    arrays = {name: map_array(*array) for name, array in sent["arrays"].items()}
    with socket.socket(fileno=sent["socket"]) as connection:
        serve(connection, **arrays)


def serve(
    connection: socket.socket,
    pixels: NDArray[np.uint8],
    indices: NDArray[np.int64],
    slots: NDArray[np.uint8],
) -> None:
    """Fills slots on request until the other end of `connection` closes, or its process dies.

    It sends `DONE` at the start and after each request. Slot s (batch size, H, W, C) gets the
    images `indices[s]` of `pixels` (N, H, W, C).
    """
    try:
        connection.sendall(DONE)
        while request := connection.recv(REQUEST.size, socket.MSG_WAITALL):
            slot, size = REQUEST.unpack(request)
            gather(pixels, indices[slot, :size], slots[slot])
            connection.sendall(DONE)
    except ConnectionError:
        return


def gather(
    pixels: NDArray[np.uint8], indices: NDArray[np.int64], out: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Puts the images `indices` (B,) into the first places of `out`, and returns these."""
    # Without `clip` NumPy would go through a buffer, in case that an index is wrong.
    return np.take(pixels, indices, axis=0, out=out[: len(indices)], mode="clip")


def map_array(file: int, shape: list[int], dtype: str, offset: int = 0) -> NDArray[Any]:
    """Returns an open file's content from `offset` on as an array, writable if the file is."""
    is_writable = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    mapped = mmap.mmap(file, 0, access=mmap.ACCESS_WRITE if is_writable else mmap.ACCESS_READ)
    return np.frombuffer(mapped, dtype, math.prod(shape), offset).reshape(shape)


if __name__ == "__main__":
    main(sys.argv[1:])
