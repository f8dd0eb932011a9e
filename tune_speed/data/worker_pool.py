"""Worker processes that gather batches ahead of the training."""

from collections import deque
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tune_speed.data import gather_worker
from tune_speed.data.gather_worker import Job
from tune_speed.data.sample_order import SampleOrder
from tune_speed.data.shared_array import SharedArray
from tune_speed.errors import DataError

END_WAIT_S = 5.0
"""How long a worker has to end of itself; it needs no longer than for one batch."""


class _Worker(NamedTuple):
    process: ForkServerProcess
    connection: "Connection[Job, str | None]"


class WorkerPool:
    """Batches from worker processes, in order, through a ring of slots in shared memory.

    Why not torch's `DataLoader`: it sends each batch as a file descriptor that the worker hands out
    on demand, so that a worker that is stopped in that moment hangs the training for ever, whatever
    the `timeout`. Here only small messages pass, each worker has a connection of its own that breaks
    at once when it dies, and every wait is bounded.
    """

    def __init__(
        self,
        pixels: NDArray[np.uint8],
        order: SampleOrder,
        *,
        workers: int,
        prefetch_factor: int,
        timeout_s: float,
    ) -> None:
        self._order = order
        self._num_workers = workers
        self._timeout_s = timeout_s
        self._pixels = SharedArray(pixels.shape)
        np.copyto(self._pixels.array, pixels)
        self._slots = SharedArray((workers * prefetch_factor, order.batch_size, *pixels.shape[1:]))
        self._workers: list[_Worker] = []
        self._batches: Iterator[tuple[int, int]] = iter(())
        self._num_asked = 0
        self._asked: deque[Job] = deque()

    def begin(self, batches: Iterator[tuple[int, int]]) -> None:
        """Starts to gather `batches`, pairs of epoch and number; forgets what was begun before."""
        while self._asked:
            self._receive()
        if not self._workers:
            self._start()
        self._batches = batches
        for _ in self._slots.array:
            self._ask()

    def next(self) -> NDArray[np.uint8]:
        """Returns the pixels of the next batch, (B, H, W, C); they hold until `release`.

        Raises:
            DataError: Its worker died, failed, or did not deliver in time.
        """
        job = self._receive()
        size = len(range(self._order.num_samples)[self._order.batch(job.number)])
        return self._slots.array[job.slot, :size]

    def release(self) -> None:
        """Lets the slot of the last batch be filled again."""
        self._ask()
