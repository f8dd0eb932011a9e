"""Encoded images to the files of a cache entry: in parallel, in little memory, and resumed."""

import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.lib.format import write_array_header_1_0
from numpy.typing import NDArray

from tune_speed.core.config import canonical_hash, left_out
from tune_speed.core.errors import DataError
from tune_speed.core.text import counted
from tune_speed.data import base, boxes
from tune_speed.data.boxes import FORMATS, SUFFIXES, Item
from tune_speed.data.workers import Pool

__all__ = ["FORMATS", "SUFFIXES"]

SERIAL_IMAGES = 500
"""Up to so many images are decoded in this process: starting others would take longer."""
MOST_PIXEL_BYTES = 16 * 2**30
"""Of a set that is stored as pixels, where it is not said how."""
SAVE_EVERY_S = 5.0
HEADER_BYTES = 128
"""Of an `.npy` file."""
STORED_MARGIN = 1.15
"""The shorter side of a stored image over the largest size at which a recipe may show it."""
MOST_NAMED = 30
"""Damaged images, in one message."""

_ROW = np.dtype(
    [("key", "<u8"), ("start", "<i8"), ("bytes", "<i8"), ("digest", "<u8"), ("size", "<i8", 2)]
    + [(flag, "?") for flag in ("is_colour", "is_animated", "is_cut")]
)
"""What is known of an image: its file, where it is stored (0: not yet), height and width."""
_STORED = ["start", "bytes", "digest"]


class Stored(NamedTuple):
    """What was stored, but for the pixels."""

    arrays: dict[str, NDArray[Any]]
    notes: tuple[str, ...]


class ImageFiles(base.DatasetConfig):
    """Base of the data sets whose images are decoded once, into the cache."""

    image_size: int | None = left_out(None, ge=1)
    """Height and width [pixels] at which images are stored: the shorter side is scaled to it and
    the centre cropped. For files of earlier versions: `store_size` keeps the whole image, and the
    recipe's `image_size` says at which size it trains."""
    store_size: int | None = left_out(None, ge=8)
    """Shorter side [pixels] to which larger images are scaled for storage, their aspect ratio kept;
    null: 1.15 times the largest size that the recipe can train at."""
    store: Literal["auto", "pixels", "jpeg"] = left_out("auto")
    """What is stored: pixels, which are read as they are, or JPEG at `store_size`, which is decoded
    in each epoch and takes about a tenth of the space; auto: pixels up to 16 GiB, else JPEG."""

    def listing(self) -> base.EncodedData:
        """Returns every image, encoded, with its label; decodes none.

        Raises: DataError if data are missing or unreadable; it names the file and row.
        """
        raise NotImplementedError

    def fetch(self) -> None:
        """Downloads what is missing, where the data set knows from where. Raises: DataError."""

    def counts(self) -> base.Counts:
        return base.Counts.of(self.listing())

    def decode(self, *, download: bool, on_progress: base.OnProgress) -> base.DecodedData:
        if download:
            self.fetch()
        listing = self.listing()
        with tempfile.TemporaryDirectory() as name:
            found = decode_images(listing, self, Path(name), on_progress).arrays
            files = Path(name).glob("*.npy")
            arrays = {**{path.stem: np.load(path, allow_pickle=False) for path in files}, **found}
        train, test = base.Images.of(arrays, "train"), base.Images.of(arrays, "test")
        assert train is not None
        brought = (listing.num_validation, listing.groups)
        return base.DecodedData(train, test, listing.class_names, *brought)


def decode_images(
    data: base.EncodedData, storage: ImageFiles, folder: Path, on_progress: base.OnProgress
) -> Stored:
    """Writes each part's images to `folder`, and returns the arrays that belong to them.

    `<part>_pixels.npy` holds boxes (N, H, W, C), one channel if no image at all has colour; or
    `<part>_encoded.npy` JPEG files one after the other. What a process that was killed, or found
    damaged images, left in the folder is not decoded again.

    Raises: DataError with all images that cannot be used; OSError if the folder takes no more.
    """
    parts = [_Part("train", data.train), *([_Part("test", data.test)] if data.test else [])]
    total = sum(len(part.rows) for part in parts)
    with Pool(0 if total <= SERIAL_IMAGES else len(os.sched_getaffinity(0))) as pool:
        for _ in chain.from_iterable(part.look(storage, pool) for part in parts):
            on_progress(0, total)
        rows = np.concatenate([part.rows for part in parts])
        if not rows["size"].any():
            _refuse_damaged(parts)
        if storage.image_size is None and storage.store_size is None:
            _check_alike(parts, rows["size"])
        how = _how(storage, rows)
        counts = chain.from_iterable(part.store(folder, how, pool) for part in parts)
        for done in accumulate(counts):
            on_progress(done, total)
    _refuse_damaged(parts)
    return Stored(dict(chain.from_iterable(part.finish() for part in parts)), tuple(_notes(rows)))


def size_of(image: base.Encoded) -> tuple[int, int]:
    """Returns an image's height and width as viewers show it. Raises: DataError."""
    (found,) = boxes.work(None, [(image.file, image.name, 0, 0, 0)])
    if isinstance(found, str):
        raise DataError(found)
    return found[0], found[1]


def _how(storage: ImageFiles, rows: NDArray[Any]) -> dict[str, Any]:
    box = (*rows["size"].max(axis=0).tolist(), 3 if rows["is_colour"].any() else 1)
    is_jpeg = storage.store == "jpeg"
    if storage.store == "auto" and storage.image_size is None:
        is_jpeg = len(rows) * math.prod(box) > MOST_PIXEL_BYTES
    return {"box": box, "image_size": storage.image_size, "path": None if is_jpeg else ""}


def _notes(rows: NDArray[Any]) -> Iterator[str]:
    cut, animated = (int(rows[flag].sum()) for flag in ("is_cut", "is_animated"))
    if cut:
        images = counted(len(rows), "image")
        yield f"cut: of {cut:,} of {images}, longer than 3:2, the middle is stored"
    if animated:
        yield f"animated: of {counted(animated, 'image')} only the first frame is read"


def _check_alike(parts: Sequence["_Part"], sizes: NDArray[np.int64]) -> None:
    known = np.flatnonzero(sizes[:, 0])
    others = known[(sizes[known] != sizes[known[:1]]).any(axis=1)]
    if len(others) == 0:
        return
    images = chain.from_iterable(part.encoded.images() for part in parts)
    name = next(islice(images, int(others[0]), None)).name
    height, width = sizes[others[0]]
    first = "x".join(map(str, sizes[known[0]][::-1]))
    raise DataError(
        f"All images must have one size, but {name} is {width}x{height} and the first is {first}."
        f" Set `store_size`, for example to {min(height, width)}."
    )


def _refuse_damaged(parts: Sequence["_Part"]) -> None:
    errors = [text for part in parts for _, text in sorted(part.errors.items())]
    if len(errors) > 1:
        more = [f"… and {len(errors) - MOST_NAMED:,} more"] if len(errors) > MOST_NAMED else []
        title = (
            f"{len(errors):,} of {sum(len(part.rows) for part in parts):,} images cannot be used;"
            " the others are kept for the next try:"
        )
        raise DataError("\n".join([title, *errors[:MOST_NAMED], *more]))
    if errors:
        raise DataError(errors[0])


class _Part:
    """The images of a part: what is known of each, and the file that they are written to."""

    def __init__(self, name: str, encoded: base.EncodedPart) -> None:
        self.name, self.encoded = name, encoded
        self.rows = np.zeros(len(encoded.labels), _ROW)
        self.errors: dict[int, str] = {}

    def look(self, storage: ImageFiles, pool: Pool) -> Iterator[None]:
        """Notes what the header of each image says; yields after each chunk. Raises: DataError."""
        side, most = storage.image_size, storage.store_size
        items = ((row, (image.file, image.name, 0, 0, 0)) for row, image in self._images())
        for chunk, answers in pool.answers(None, items):
            for (row, _), answer in zip(chunk, answers, strict=True):
                if isinstance(answer, str):
                    self.errors[row] = answer
                    continue
                height, width, *flags, key = answer
                size = boxes.stored_size(height, width, most) if side is None else (side, side)
                is_cut = most is not None and boxes.middle(height, width) != (height, width)
                self.rows[row] = (key, 0, 0, 0, size, *flags, is_cut)
            yield

    def store(self, folder: Path, how: dict[str, Any], pool: Pool) -> Iterator[int]:
        """Yields how many more images are in the file, after each chunk. Raises: OSError."""
        self._open(folder, how)
        yield int((self.rows["start"] > 0).sum())
        saved = time.monotonic()
        with open(self.path, "r+b") as file:
            try:
                for chunk, answers in pool.answers(self._how, self._missing()):
                    for (row, item), answer in zip(chunk, answers, strict=True):
                        self._keep(file, row, item[4], answer)
                    yield len(chunk)
                    if time.monotonic() - saved > SAVE_EVERY_S:
                        self._save(file)
                        saved = time.monotonic()
            finally:
                self._save(file)

    def finish(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Puts the images in their order, and yields the other arrays by their names."""
        rows, box, name = self.rows, self._how["box"], self.name
        ends = HEADER_BYTES + np.cumsum(rows["bytes"])
        if (rows["start"] != ends - rows["bytes"]).any():
            self._put_in_order()
        shape = (int(ends[-1]) - HEADER_BYTES,) if self._is_jpeg else (len(rows), *box)
        with open(self.path, "r+b") as file:
            write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            assert file.tell() == HEADER_BYTES
            file.truncate(ends[-1])
            os.fsync(file.fileno())
        yield f"{name}_labels", self.encoded.labels
        yield f"{name}_digests", rows["digest"].copy()
        if (rows["size"] != box[:2]).any():
            yield f"{name}_sizes", rows["size"].copy()
        if self._is_jpeg:
            yield f"{name}_ends", ends - HEADER_BYTES
            yield f"{name}_box", np.array(box)

    def _images(self) -> Iterator[tuple[int, base.Encoded]]:
        """Yields images by their rows. Raises: DataError if it has not one a label."""
        most, row = len(self.rows), -1
        # A damaged file may have more or fewer.
        for row, image in enumerate(islice(self.encoded.images(), most + 1)):
            if row < most:
                yield row, image
        if row + 1 != most or most == 0:
            raise DataError(
                f"{self.encoded.name} must hold images, one for each of its {most} labels, but has"
                f" {'more' if row >= most else row + 1}."
            )

    def _open(self, folder: Path, how: dict[str, Any]) -> None:
        self._is_jpeg = how["path"] is None
        self.path = folder / f"{self.name}_{'encoded' if self._is_jpeg else 'pixels'}.npy"
        self._how = how if self._is_jpeg else {**how, "path": str(self.path)}
        self._known = folder / f"{self.name}_rows-{canonical_hash(how)}.npy"
        try:
            self._take_over(np.load(self._known, allow_pickle=False))
        except (OSError, ValueError):
            # There is nothing, or images stored in another way.
            for old in folder.glob(f"{self.name}_*"):
                old.unlink()
            self.path.touch()
        self._end = int((self.rows["start"] + self.rows["bytes"]).max(initial=HEADER_BYTES))

    def _take_over(self, known: NDArray[Any]) -> None:
        _, new, old = np.intersect1d(self.rows["key"], known["key"], return_indices=True)
        is_same = (known["size"][old] == self.rows["size"][new]).all(axis=1)
        is_same &= known["start"][old] > 0
        new, old = new[is_same], old[is_same]
        if (known["start"] + known["bytes"])[old].max(initial=0) > self.path.stat().st_size:
            raise ValueError("the file is shorter than what it should hold")
        self.rows[_STORED][new] = known[_STORED][old]

    def _missing(self) -> Iterator[tuple[int, Item]]:
        end = self._end
        for row, image in self._images():
            if self.rows["start"][row] == 0 and row not in self.errors:
                height, width = self.rows["size"][row].tolist()
                yield row, (image.file, image.name, height, width, end)
                end += math.prod(self._how["box"])

    def _keep(self, file: BinaryIO, row: int, start: int, answer: Any) -> None:
        if isinstance(answer, str):
            self.errors[row] = answer
            return
        digest, encoded = answer
        num_bytes = len(encoded) or math.prod(self._how["box"])
        if self._is_jpeg:
            start = self._end
            file.seek(start)
            file.write(encoded)
            self._end += num_bytes
        self.rows[_STORED][row] = (start, num_bytes, digest)

    def _save(self, file: BinaryIO) -> None:
        # The images first: after a power cut none may be missing that is said to be there.
        file.flush()
        os.fsync(file.fileno())
        temporary = self._known.with_suffix(".tmp")
        with temporary.open("wb") as known:
            np.save(known, self.rows, allow_pickle=False)
        temporary.replace(self._known)

    def _put_in_order(self) -> None:
        temporary = self.path.with_suffix(".tmp")
        with self.path.open("rb") as old, temporary.open("wb") as new:
            new.write(bytes(HEADER_BYTES))
            for one in self.rows:
                old.seek(int(one["start"]))
                one["start"] = new.tell()
                new.write(old.read(int(one["bytes"])))
            temporary.replace(self.path)
            self._save(new)
