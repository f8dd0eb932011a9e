"""Worker processes that decode or gather images: each runs `boxes.main` at the end of a pipe."""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import Pipe
from typing import Any, Self

from tune_speed.core.errors import DataError
from tune_speed.data import boxes
from tune_speed.data.boxes import WAIT_S, Item

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

    def ask(self, call: str, *given: object) -> None:
        """Asks for an answer of `boxes.main`, which come in order. Raises: OSError if it ended."""
        self.connection.send((call, *given))

    def answer(self, wait_s: float) -> Any:
        """Returns the next answer.

        Raises: TimeoutError if it takes longer; EOFError or OSError if the process has ended.
        """
        if self.connection.poll(wait_s):
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
