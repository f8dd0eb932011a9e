"""What a worker process of the streaming loader does. Needs no torch: 30 MiB instead of 300."""

import signal
import traceback
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tune_speed.data.sample_order import SampleOrder


class Job(NamedTuple):
    """One batch to gather."""

    epoch: int
    number: int
    """Number of the batch in its epoch."""
    slot: int
    """Where to put it."""


def run(
    connection: "Connection[str | None, Job]",
    pixels: NDArray[np.uint8],
    slots: NDArray[np.uint8],
    order: SampleOrder,
) -> None:
    """Gathers batches until the other end of `connection` closes or its process dies.

    Says None when it is ready and after each job, or else the traceback of what went wrong.

    Args:
        connection: Brings jobs.
        pixels: The set, (N, H, W, C).
        slots: Room for batches, (slots, batch size, H, W, C).
        order: Which images are in which batch.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the training process's business
    try:
        connection.send(None)
        indices, epoch = order.epoch(0), 0
        while True:
            job = connection.recv()
            if job.epoch != epoch:
                indices, epoch = order.epoch(job.epoch), job.epoch
            gather(pixels, indices[order.batch(job.number)], slots[job.slot])
            connection.send(None)
    except (EOFError, ConnectionError):
        return
    except Exception:
        connection.send(traceback.format_exc())


def gather(
    pixels: NDArray[np.uint8], indices: NDArray[np.int64], out: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Puts the images `indices` (B,) into the first places of `out`, and returns these."""
    # Without `clip` NumPy would go through a buffer, in case that an index is wrong.
    return np.take(pixels, indices, axis=0, out=out[: len(indices)], mode="clip")
