"""What decodes and gathers images beside a training: processes with `boxes.main`, and threads."""

import os
import pickle
import select
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from multiprocessing import Pipe
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tune_speed.core.errors import DataError
from tune_speed.data import boxes
from tune_speed.data.base import EncodedRows, Indices, Pixels, file_map
from tune_speed.data.boxes import WAIT_S, Damaged, Item, decode

MOST_THREADS = 8
"""That decode stored images; fewer where torch has fewer."""
CHUNK_IMAGES = 64
CHUNK_BYTES = 4 * 2**20
Chunk = list[tuple[int, Item]]
"""Images, each with its row."""


class Worker:
    """A process, and our end of its pipe."""

    def __init__(self, files: Iterable[int] = ()) -> None:
        """Starts it with these open files."""
        self.connection, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", boxes.__file__, str(theirs.fileno())],
                pass_fds=(theirs.fileno(), *files),
                stdin=subprocess.DEVNULL,
                # One thread: NumPy's BLAS would start one a core. The same modules as here.
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            )

        # `Connection.poll` and `send` would take ten times as long as these.
        self._incoming = select.poll()
        self._incoming.register(self.connection.fileno(), select.POLLIN)

    def ask(self, call: str, *given: object) -> None:
        """Asks for an answer of `boxes.main`, which come in order. Raises: OSError if it ended."""
        self.connection.send_bytes(pickle.dumps((call, *given)))

    def answer(self, wait_s: float) -> Any:
        """Returns the next answer.

        Raises: TimeoutError if it takes longer; EOFError or OSError if the process has ended.
        """
        if self._incoming.poll(1000 * wait_s):
            return self.connection.recv()
        raise TimeoutError

    def end(self, *, wait_s: float = 0.0) -> None:
        """Lets it end of itself, after what it is at, within `wait_s` [s]; else kills it."""
        self.connection.close()
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Pool:
    """Worker processes that look at images and store them; none: this process does."""

    def __init__(self, workers: int) -> None:
        self.workers = [Worker() for _ in range(workers if workers > 1 else 0)]
        self._idle = [*range(len(self.workers))]
        # A thread waits for each.
        self._threads = ThreadPoolExecutor(max(1, len(self.workers)))
        self._is_over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # What they are at is not kept, so that there is nothing to wait for.
        self._is_over = True
        for worker in self.workers:
            worker.process.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self.workers:
            worker.end()

    def answers(
        self, how: dict[str, Any] | None, items: Iterable[tuple[int, Item]]
    ) -> Iterator[tuple[Chunk, list[Any]]]:
        """Yields each chunk of `items` with the answers of `boxes.work`, in order.

        Raises: OSError as `boxes.work`; DataError if two workers end with the same chunk.
        """
        asked: deque[Future[tuple[Chunk, list[Any]]]] = deque()
        for chunk in _chunks(items):
            asked.append(self._threads.submit(self._answered, how, chunk))
            if len(asked) > 2 * len(self.workers):
                yield asked.popleft().result()
        yield from (answer.result() for answer in asked)

    def _answered(self, how: dict[str, Any] | None, chunk: Chunk) -> tuple[Chunk, list[Any]]:
        items = [item for _, item in chunk]
        if not self.workers:
            return chunk, boxes.work(how, items)
        number = self._idle.pop()
        try:
            return chunk, self._answer_of(number, how, items)
        finally:
            self._idle.append(number)

    def _answer_of(self, number: int, how: dict[str, Any] | None, items: list[Item]) -> list[Any]:
        for _ in range(2):
            worker = self.workers[number]
            try:
                worker.ask("work", how, items)
                answer: list[Any] | OSError = worker.answer(WAIT_S)
            except (OSError, EOFError):
                if self._is_over:
                    raise
                worker.end()
                self.workers[number] = Worker()
                continue
            if isinstance(answer, OSError):
                raise answer
            return answer
        raise DataError(
            f"A process must decode {items[0][1]} to {items[-1][1]}, but two ended in it, or"
            f" took more than {WAIT_S} s. Leave these {len(items)} images out, or find the one"
            " that is damaged; or is memory short?"
        )


def _chunks(items: Iterable[tuple[int, Item]]) -> Iterator[Chunk]:
    chunk: Chunk = []
    num_bytes = 0
    for row, item in items:
        chunk.append((row, item))
        num_bytes += len(item[0]) if isinstance(item[0], bytes) else 0
        if len(chunk) == CHUNK_IMAGES or num_bytes >= CHUNK_BYTES:
            yield chunk
            chunk, num_bytes = [], 0
    if chunk:
        yield chunk


def damaged(images: EncodedRows, why: object) -> DataError:
    """Returns the error of a store that holds what is no image; `why` says which."""
    file = getattr(file_map(images.encoded), "filename", None)
    where = "" if file is None else f" Remove the folder of {file}: the set is then stored again."
    return DataError(f"Every stored image must be a whole JPEG file, but not {why}.{where}")


class DecodingThreads:
    """Threads of this process that decode images; Pillow lets several do so at a time."""

    def __init__(self, images: EncodedRows) -> None:
        import torch

        self._images = images
        self._num_threads = max(1, min(MOST_THREADS, torch.get_num_threads()))
        self._pool = ThreadPoolExecutor(self._num_threads)

    def gather(self, indices: Indices, out: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Decodes the images at `indices` (B,) of the file into `out`, and returns these places.

        Raises: DataError if one is damaged.
        """
        room = out[: len(indices)]
        shares = (np.array_split(each, self._num_threads) for each in (indices, room))
        one = partial(decode, self._images.encoded, self._images.ends)
        try:
            list(self._pool.map(one, *shares))
        except Damaged as error:
            raise damaged(self._images, error) from error
        return room

    def close(self) -> None:
        """Ends the threads once what they do is done."""
        self._pool.shutdown()


def pieces(pixels: Pixels, size: int) -> Iterator[NDArray[np.uint8]]:
    """Yields copies of all images in their order, `size` at a time; encoded ones a piece ahead.

    Raises: DataError if an encoded one is damaged.
    """
    starts = range(0, len(pixels), size)
    if not isinstance(pixels, EncodedRows):
        yield from (pixels[start : start + size].copy() for start in starts)
        return
    with closing(DecodingThreads(pixels)) as threads, ThreadPoolExecutor(1) as ahead:

        def begin(start: int) -> Future[NDArray[np.uint8]]:
            rows = pixels.rows[start : start + size]
            return ahead.submit(threads.gather, rows, np.empty((len(rows), *pixels.box), np.uint8))

        following = begin(0)
        for start in starts:
            made = following.result()
            following = begin(start + size)
            yield made
