"""Worker processes that gather batches ahead of the training, in memory that all of them see."""

import itertools
import math
import os
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from tune_speed.core.errors import ConfigError, DataError
from tune_speed.data.base import EncodedRows, file_map
from tune_speed.data.boxes import map_array
from tune_speed.data.workers import Worker, damaged
from tune_speed.runtime.device import free_bytes


class SharedArray(NamedTuple):
    """An array that another process maps from a file by the file's number."""

    file: IO[bytes]
    """Closed, it can be mapped no more; the memory is freed with the last mapping."""
    array: NDArray[Any]
    offset: int = 0

    @classmethod
    def empty(cls, shape: Sequence[int], dtype: DTypeLike) -> Self:
        """Returns an array in an anonymous file."""
        kind = np.dtype(dtype)
        # Without a name nothing is left behind if the process is killed. And not in /dev/shm, of
        # which a container may have as little as 64 MiB.
        if hasattr(os, "memfd_create"):
            memory = os.memfd_create("tune_speed", os.MFD_CLOEXEC)
            file: IO[bytes] = os.fdopen(memory, "r+b", buffering=0)
        else:
            # Not on Linux: on disk, but without a name too.
            file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        file.truncate(math.prod(shape) * kind.itemsize)
        return cls(file, map_array(file.fileno(), shape, kind.str))

    @classmethod
    def of(cls, array: NDArray[Any]) -> Self:
        """Returns the array for other processes, without a copy where it is mapped from a file."""
        mapped = file_map(array)
        if mapped is not None and mapped.filename is not None:
            # An entry of the cache that was replaced meanwhile is mapped still, but has no name.
            with suppress(FileNotFoundError):
                file = open(mapped.filename, "rb", buffering=0)  # noqa: SIM115
                return cls(file, mapped, mapped.offset)
        copied = cls.empty(array.shape, array.dtype)
        np.copyto(copied.array, array)
        return copied


# How long a worker has to end of itself; it needs no longer than for one batch.
END_WAIT_S = 5.0
MOST_SLOTS_SHARE = 0.25
"""Of the free memory, for the batches that workers keep ready."""


class _Job(NamedTuple):
    slot: int
    size: int


# Why not torch's `DataLoader`: it sends each batch as a file descriptor that the worker hands out
# on demand, so that a worker that is stopped in that moment hangs the training for ever, whatever
# the `timeout`. Here only small messages pass, each worker has a socket of its own, which breaks at
# once when it dies, and every wait is bounded. It is also quicker: 8 against 20 µs an image of
# 32x32 pixels, augmented (2 workers on 2 cores of an AMD EPYC, in turns, median of 13).
class WorkerPool:
    """Batches from worker processes, in order, through a ring of slots in shared memory."""

    def __init__(
        self,
        pixels: NDArray[np.uint8] | EncodedRows,
        batch_size: int,
        *,
        workers: int,
        prefetch_factor: int,
        timeout_s: float,
    ) -> None:
        """Starts nothing yet; indices are those of the whole file, where images are encoded.

        Raises: ConfigError if what the workers keep ready takes too much of the free memory.
        """
        num_slots = workers * prefetch_factor
        batch_shape = (batch_size, *pixels.shape[1:])
        if num_slots > most_slots(batch_shape):
            raise ConfigError.of(
                "recipe.loader.dataloader",
                f"must have at most {most_slots(batch_shape)} batches in stock, which take a"
                " quarter of the free memory",
                given=f"workers={workers} with prefetch_factor={prefetch_factor} each",
                hint="Set fewer `workers`, or a smaller `prefetch_factor` or batch.",
            )
        self._num_workers = workers
        self._timeout_s = timeout_s
        self._encoded = pixels if isinstance(pixels, EncodedRows) else None
        source: dict[str, NDArray[Any]] = (
            {"source": pixels.encoded, "ends": pixels.ends}
            if isinstance(pixels, EncodedRows)
            else {"source": pixels}
        )
        self._arrays = {name: SharedArray.of(array) for name, array in source.items()}
        self._arrays["indices"] = SharedArray.empty((num_slots, batch_size), np.int64)
        self._arrays["slots"] = SharedArray.empty((num_slots, *batch_shape), np.uint8)
        self._indices, self._slots = self._arrays["indices"].array, self._arrays["slots"].array
        self._workers: list[Worker] = []
        self._batches: Iterator[NDArray[np.int64]] = iter(())
        self._num_asked = 0
        self._asked: deque[_Job] = deque()

    def begin(self, batches: Iterator[NDArray[np.int64]]) -> None:
        while self._asked:
            self._receive()
        if not self._workers:
            self._workers.extend(self._start_one() for _ in range(self._num_workers))
            for worker in self._workers:
                self._wait_for(worker)
        self._batches = batches
        self._ask(len(self._slots))

    def fill(self, room: NDArray[np.uint8]) -> int:
        """Puts the next batch in `room`; returns its size, or 0. Raises: DataError."""
        if not self._asked:
            return 0
        job = self._receive()
        np.copyto(room[: job.size], self._slots[job.slot, : job.size])
        self._ask(1)
        return job.size

    def stop(self) -> None:
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.end(wait_s=END_WAIT_S)
        self._workers.clear()
        self._asked.clear()

    def close(self) -> None:
        self.stop()
        for shared in self._arrays.values():
            shared.file.close()

    def _start_one(self) -> Worker:
        arrays = {
            name: (file.fileno(), array.shape, array.dtype.str, offset)
            for name, (file, array, offset) in self._arrays.items()
        }
        worker = Worker([file for file, *_ in arrays.values()])
        # One that could not start is reported when it is waited for.
        with suppress(OSError):
            worker.ask("share", arrays)
        return worker

    def _ask(self, num_batches: int) -> None:
        for indices in itertools.islice(self._batches, num_batches):
            job = _Job(self._num_asked % len(self._slots), len(indices))
            self._indices[job.slot, : job.size] = indices
            self._num_asked += 1
            self._asked.append(job)
            # A dead worker is reported when its batch is waited for.
            with suppress(OSError):
                self._worker(job).ask("fill", *job)

    def _receive(self) -> _Job:
        job = self._asked.popleft()
        self._wait_for(self._worker(job))
        return job

    def _worker(self, job: _Job) -> Worker:
        # Slots are filled in turn, each always by the same worker.
        return self._workers[job.slot % self._num_workers]

    def _wait_for(self, worker: Worker) -> None:
        error: DataError | None = None
        failure = f"did nothing for {self._timeout_s:g} s (`timeout_s`)"
        try:
            if (damage := worker.answer(self._timeout_s)) is None:
                return
            assert self._encoded is not None, damage
            error = damaged(self._encoded, damage)
        except TimeoutError:
            pass
        except (EOFError, OSError):
            failure = _ending(worker.process)
        for each in self._workers:
            each.process.kill()
        self.stop()
        raise error or DataError(
            f"A loader's worker process must deliver its batch, but it {failure}. Try fewer"
            " `workers`, or the `resident` loader."
        )


def most_slots(batch_shape: tuple[int, ...]) -> int:
    """Returns how many batches (B, H, W, C) of bytes may be in stock, at least 1."""
    free = MOST_SLOTS_SHARE * free_bytes(torch.device("cpu"))
    return max(1, int(free / math.prod(batch_shape)))


def _ending(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(END_WAIT_S)
    except subprocess.TimeoutExpired:
        return "closed its connection"
    cause = "memory may have run out" if code == -9 else "see what it printed above"
    return f"ended with exit code {code}: {cause}"
