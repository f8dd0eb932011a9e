"""Encoded images to the files of a cache entry: in parallel, in little memory, and resumed."""

import math
import os
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.lib.format import write_array_header_1_0
from numpy.typing import NDArray

from tune_speed.core.config import canonical_hash
from tune_speed.core.errors import DataError
from tune_speed.core.text import counted
from tune_speed.data import boxes
from tune_speed.data.base import Encoded, EncodedData, EncodedPart, OnProgress
from tune_speed.data.boxes import FORMATS, SUFFIXES, Item

__all__ = ["FORMATS", "SUFFIXES"]

SERIAL_IMAGES = 500
"""Up to so many images are decoded in this process: starting others would take longer."""
TORCHVISION_IMAGES = 20_000
"""From so many on, torchvision decodes JPEG: importing it takes 4 s a process."""
MOST_PIXEL_BYTES = 16 * 2**30
"""Of a set that is stored as pixels, where it is not said how."""
CHUNK_IMAGES = 64
CHUNK_BYTES = 4 * 2**20
WAIT_S = 300.0
"""Within which a worker must answer."""
SAVE_EVERY_S = 5.0
HEADER_BYTES = 128
"""Of an `.npy` file."""
MOST_NAMED = 30
"""Damaged images, in one message."""

_ROW = np.dtype(
    [("key", "<u8"), ("start", "<i8"), ("bytes", "<i8"), ("digest", "<u8"), ("size", "<i8", 2)]
)
"""What is known of an image: its file, where it is stored (0: not yet), height and width."""


class Storage(NamedTuple):
    """How the images of a data set are stored; its fields are those of `ImageFiles`."""

    image_size: int | None
    store_size: int | None
    store: str


class Stored(NamedTuple):
    """What was stored, but for the pixels."""

    arrays: dict[str, NDArray[Any]]
    notes: tuple[str, ...]


class _Part(NamedTuple):
    name: str
    encoded: EncodedPart
    rows: NDArray[Any]
    errors: dict[int, str]


def decode_images(
    data: EncodedData, storage: Storage, folder: Path, on_progress: OnProgress
) -> Stored:
    """Writes each part's images to `folder`, and returns the arrays that belong to them.

    `<part>_pixels.npy` holds boxes (N, H, W, C), one channel if no image at all has colour; or
    `<part>_encoded.npy` JPEG files one after the other. What a process that was killed, or found
    damaged images, left in the folder is not decoded again.

    Raises: DataError with all images that cannot be used; OSError if the folder takes no more.
    """
    named = {"train": data.train, **({"test": data.test} if data.test else {})}
    total = sum(len(part.labels) for part in named.values())
    with Pool(0 if total <= SERIAL_IMAGES else len(os.sched_getaffinity(0))) as pool:
        parts, is_grey, notes = _looked_at(named, storage, pool, on_progress)
        sizes = np.concatenate([part.rows["size"] for part in parts])
        box = (*map(int, sizes.max(axis=0)), 1 if is_grey else 3)
        kind = storage.store if storage.store != "auto" else "pixels"
        if storage.store == "auto" and storage.image_size is None:
            kind = "pixels" if total * math.prod(box) <= MOST_PIXEL_BYTES else "jpeg"
        how = {
            "box": box,
            "image_size": storage.image_size,
            "path": "" if kind == "pixels" else None,
            "torchvision": total >= TORCHVISION_IMAGES,
        }
        files = [_PartFile(folder, part, how) for part in parts]
        done = 0
        for file in files:
            for count in file.fill(pool):
                done += count
                on_progress(done, total)
    if errors := [text for part in parts for _, text in sorted(part.errors.items())]:
        raise DataError(_all_of(errors, total))
    arrays = dict(chain.from_iterable(file.finish() for file in files))
    return Stored(arrays, notes)


def size_of(image: Encoded) -> tuple[int, int]:
    """Returns an image's height and width as viewers show it. Raises: DataError."""
    (found,) = boxes.work(None, [(_sent(image), image.name, 0, 0, 0)])
    if isinstance(found, str):
        raise DataError(found)
    return found[0], found[1]


def _looked_at(
    named: dict[str, EncodedPart], storage: Storage, pool: "Pool", on_progress: OnProgress
) -> tuple[list[_Part], bool, tuple[str, ...]]:
    """Returns the parts with the size of each image, whether none has colour, and notes."""
    total = sum(len(part.labels) for part in named.values())
    parts, is_grey, cut, animated = [], True, 0, 0
    for name, encoded in named.items():
        part = _Part(name, encoded, np.zeros(len(encoded.labels), _ROW), {})
        images = enumerate(_images(encoded))
        items = ((row, (_sent(image), image.name, 0, 0, 0)) for row, image in images)
        for chunk, answers in pool.answers(None, items):
            on_progress(0, total)
            for (row, _), answer in zip(chunk, answers, strict=True):
                if isinstance(answer, str):
                    part.errors[row] = answer
                    continue
                height, width, one_is_grey, is_animated, part.rows["key"][row] = answer
                is_grey &= one_is_grey
                animated += is_animated
                sides = boxes.stored_size(height, width, storage.store_size)
                is_long = max(height, width) > 2 * min(height, width)
                cut += is_long and storage.store_size is not None
                side = storage.image_size
                part.rows["size"][row] = sides if side is None else (side, side)
        parts.append(part)
    errors = [text for part in parts for text in part.errors.values()]
    if len(errors) == total:
        raise DataError(_all_of(errors, total))
    if storage.image_size is None and storage.store_size is None:
        _check_alike(parts)
    notes = []
    if cut:
        notes.append(
            f"cut: of {cut:,} of {counted(total, 'image')}, longer than 2:1, the middle is stored"
        )
    if animated:
        notes.append(f"animated: of {counted(animated, 'image')} only the first frame is read")
    return parts, is_grey, tuple(notes)


def _check_alike(parts: Sequence[_Part]) -> None:
    first: Any = None
    for part in parts:
        for row, (height, width) in enumerate(part.rows["size"].tolist()):
            if row in part.errors:
                continue
            first = first or (height, width)
            if (height, width) != first:
                name = next(image.name for n, image in enumerate(part.encoded.images()) if n == row)
                raise DataError(
                    f"All images must have one size, but {name} is {width}x{height} and the first"
                    f" is {first[1]}x{first[0]}. Set `store_size`, for example to"
                    f" {min(height, width)}."
                )


def _images(part: EncodedPart) -> Iterator[Encoded]:
    """Yields a part's images. Raises: DataError if it has not one a label."""
    # A damaged file may have more or fewer.
    count = -1
    for count, image in enumerate(part.images()):
        if count >= len(part.labels):
            break
        yield image
    if count + 1 != len(part.labels):
        found = "more" if count + 1 > len(part.labels) else f"only {count + 1} images"
        raise DataError(
            f"{part.name} must hold {len(part.labels)} images, one a label, but has {found}."
        )
    if count < 0:
        raise DataError(f"{part.name} must hold images, but holds none.")


def _all_of(errors: Sequence[str], total: int) -> str:
    if len(errors) == 1:
        return errors[0]
    more = f"\n… and {len(errors) - MOST_NAMED:,} more" if len(errors) > MOST_NAMED else ""
    return (
        f"{len(errors):,} of {total:,} images cannot be used; the others are kept for the next"
        " try:\n" + "\n".join(errors[:MOST_NAMED]) + more
    )


def _sent(image: Encoded) -> str | bytes:
    return image.file if isinstance(image.file, bytes) else str(image.file)


class _PartFile:
    """The file that a part's images are written to, and what is known of each of them."""

    def __init__(self, folder: Path, part: _Part, how: dict[str, Any]) -> None:
        """Takes over what lies there of the same images, stored in the same way."""
        self._part, self._box, self._is_jpeg = part, how["box"], how["path"] is None
        self.path = folder / f"{part.name}_{'encoded' if self._is_jpeg else 'pixels'}.npy"
        self._how = {**how, "path": None if self._is_jpeg else str(self.path)}
        kind = canonical_hash({**how, "path": self._is_jpeg})
        self._known = folder / f"{part.name}_rows-{kind}.npy"
        self._saved = time.monotonic()
        try:
            self._take_over(np.load(self._known, allow_pickle=False))
        except (OSError, ValueError):
            # There is nothing, or images stored in another way.
            for old in folder.glob(f"{part.name}_*"):
                old.unlink()
            self.path.touch()
        rows = part.rows
        own = HEADER_BYTES + np.arange(len(rows)) * math.prod(self._box)
        moved = (rows["start"] > 0) & (rows["start"] != own)
        # Where no image lies at another's place, each is put at its own.
        self._places = None if self._is_jpeg or moved.any() else own
        self._end = int((rows["start"] + rows["bytes"]).max(initial=HEADER_BYTES))

    def fill(self, pool: "Pool") -> Iterator[int]:
        """Yields how many more images are done. Raises: OSError."""
        yield int((self._part.rows["start"] > 0).sum())
        with open(self.path, "r+b") as file:
            try:
                for chunk, answers in pool.answers(self._how, self._missing()):
                    for (row, item), answer in zip(chunk, answers, strict=True):
                        self._keep(file, row, item[4], answer)
                    yield len(chunk)
                    if time.monotonic() - self._saved > SAVE_EVERY_S:
                        self._save(file)
            finally:
                self._save(file)

    def finish(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Puts the images in their order, and yields the other arrays by their names."""
        rows, name = self._part.rows, self._part.name
        ends = HEADER_BYTES + np.cumsum(rows["bytes"])
        if (rows["start"] != ends - rows["bytes"]).any():
            self._put_in_order()
        shape = (int(ends[-1]) - HEADER_BYTES,) if self._is_jpeg else (len(rows), *self._box)
        with open(self.path, "r+b") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            write_array_header_1_0(file, header)
            assert file.tell() == HEADER_BYTES
            file.truncate(ends[-1])
            os.fsync(file.fileno())
        yield f"{name}_labels", self._part.encoded.labels
        yield f"{name}_digests", rows["digest"].copy()
        if (rows["size"] != self._box[:2]).any():
            yield f"{name}_sizes", rows["size"].copy()
        if self._is_jpeg:
            yield f"{name}_ends", ends - HEADER_BYTES
            yield f"{name}_box", np.array(self._box)

    def _take_over(self, known: NDArray[Any]) -> None:
        rows, order = self._part.rows, np.argsort(known["key"], kind="stable")
        found = np.arange(len(rows))
        if not np.array_equal(known["key"], rows["key"]):
            near = np.searchsorted(known["key"], rows["key"], sorter=order)
            found = order[near.clip(max=len(order) - 1)]
        old = known[found]
        is_same = (old["key"] == rows["key"]) & (old["start"] > 0)
        is_same &= (old["size"] == rows["size"]).all(axis=1)
        if int((old["start"] + old["bytes"])[is_same].max(initial=0)) > self.path.stat().st_size:
            raise ValueError("the file is shorter than what it should hold")
        for field in ("start", "bytes", "digest"):
            rows[field][is_same] = old[field][is_same]

    def _missing(self) -> Iterator[tuple[int, Item]]:
        rows = self._part.rows
        end = self._end
        for row, image in enumerate(_images(self._part.encoded)):
            if rows["start"][row] or row in self._part.errors:
                continue
            start = end if self._places is None else int(self._places[row])
            end += math.prod(self._box)
            height, width = rows["size"][row].tolist()
            yield row, (_sent(image), image.name, height, width, start)

    def _keep(self, file: Any, row: int, start: int, answer: Any) -> None:
        if isinstance(answer, str):
            self._part.errors[row] = answer
            return
        digest, encoded = answer
        num_bytes = math.prod(self._box)
        if self._is_jpeg:
            start, num_bytes = self._end, len(encoded)
            file.seek(start)
            file.write(encoded)
            self._end += num_bytes
        one = self._part.rows[row : row + 1]
        one["digest"], one["bytes"], one["start"] = digest, num_bytes, start

    def _save(self, file: Any) -> None:
        # The images first: after a power cut none may be missing that is said to be there.
        file.flush()
        os.fsync(file.fileno())
        temporary = self._known.with_suffix(".tmp")
        with temporary.open("wb") as known:
            np.save(known, self._part.rows, allow_pickle=False)
        temporary.replace(self._known)
        self._saved = time.monotonic()

    def _put_in_order(self) -> None:
        """Writes the file again, where images of an earlier try lie in another order."""
        rows, temporary = self._part.rows, self.path.with_suffix(".tmp")
        with self.path.open("rb") as old, temporary.open("wb") as new:
            new.write(bytes(HEADER_BYTES))
            for row in range(len(rows)):
                old.seek(int(rows["start"][row]))
                rows["start"][row] = new.tell()
                new.write(old.read(int(rows["bytes"][row])))
            temporary.replace(self.path)
            self._save(new)


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    connection: "Connection[Any, Any]"


Chunk = list[tuple[int, Item]]
"""Images, each with its row."""


class Pool:
    """Worker processes that look at images and store them, by turns; none: this process does."""

    def __init__(self, workers: int) -> None:
        self._workers = [_started() for _ in range(workers if workers > 1 else 0)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # What they are at is not kept, so that there is nothing to wait for.
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.connection.close()
            worker.process.wait()

    def answers(
        self, how: dict[str, Any] | None, items: Iterable[tuple[int, Item]]
    ) -> Iterator[tuple[Chunk, list[Any]]]:
        """Yields each chunk of `items` with the answers of `boxes.work`, in order.

        Raises: OSError as `boxes.work`; DataError if two workers end with the same chunk.
        """
        asked: deque[tuple[int, Chunk]] = deque()
        for number, chunk in enumerate(_chunks(items)):
            if not self._workers:
                yield chunk, boxes.work(how, [item for _, item in chunk])
                continue
            place = number % len(self._workers)
            asked.append((place, chunk))
            self._ask(place, how, chunk)
            if len(asked) >= 2 * len(self._workers):
                yield self._answer(how, asked)
        while asked:
            yield self._answer(how, asked)

    def _ask(self, place: int, how: dict[str, Any] | None, chunk: Chunk) -> None:
        # One that has ended is noticed when its answer is waited for.
        with suppress(OSError):
            self._workers[place].connection.send((how, [item for _, item in chunk]))

    def _answer(
        self, how: dict[str, Any] | None, asked: deque[tuple[int, Chunk]]
    ) -> tuple[Chunk, list[Any]]:
        place, chunk = asked[0]
        for _ in range(2):
            try:
                answer = self._workers[place].connection.recv()
            except (OSError, EOFError):
                self._replace(place, how, [its for one, its in asked if one == place])
                continue
            asked.popleft()
            if isinstance(answer, OSError):
                raise answer
            return chunk, answer
        raise DataError(
            f"A process must decode {chunk[0][1][1]} to {chunk[-1][1][1]}, but two ended in it, or"
            f" took more than {WAIT_S:g} s. Leave these {len(chunk)} images out, or find the one"
            " that is damaged; or is memory short?"
        )

    def _replace(self, place: int, how: dict[str, Any] | None, chunks: Iterable[Chunk]) -> None:
        process, connection = self._workers[place]
        process.kill()
        connection.close()
        process.wait()
        self._workers[place] = _started()
        for chunk in chunks:
            self._ask(place, how, chunk)


def _started() -> _Worker:
    ours, theirs = socket.socketpair()
    # So that no wait for a worker is endless.
    limit = struct.pack("ll", int(WAIT_S), 0)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", boxes.__file__, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            # One thread: NumPy's BLAS would start one for each core. The same modules as here.
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    return _Worker(process, Connection(ours.detach()))


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
