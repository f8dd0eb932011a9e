"""What every data set gives: its size without decoding, its files, and its decoded images."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tune_speed.core.config import Config
from tune_speed.core.errors import DataError

OnProgress = Callable[[int, int], None]
"""Progress callback: `on_progress(images_done, images_total)`."""


class MappedRows:
    """Some rows of a mapped array, in an order of their own; read on access."""

    # All processes that map the file share its pages; of a copy each would have its own.
    def __init__(self, whole: NDArray[np.uint8], rows: NDArray[np.int64]) -> None:
        """Reads nothing yet of the rows (M,) of the mapped array (N, H, W, C)."""
        self.whole, self.rows = whole, rows

    @property
    def shape(self) -> tuple[int, ...]:
        """(M, H, W, C)."""
        return (len(self.rows), *self.whole.shape[1:])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: slice) -> NDArray[np.uint8]:
        """Returns a copy of the rows in a range, (B, H, W, C)."""
        return self.whole.take(self.rows[which], axis=0)


Pixels = NDArray[np.uint8] | MappedRows
"""Images (N, H, W, C), in memory or in a file."""


def whole_of(pixels: Pixels) -> tuple[NDArray[np.uint8], NDArray[np.int64] | None]:
    """Returns an array that holds the images, and where: None, if at their own places."""
    if isinstance(pixels, MappedRows):
        return pixels.whole, pixels.rows
    return pixels, None


def file_map(array: NDArray[Any]) -> np.memmap[Any, Any] | None:
    """Returns the memory map that `array` is the whole of, or None."""
    base = array.base
    return base if isinstance(base, np.memmap) and base.shape == array.shape else None


class Images(NamedTuple):
    """Images and their labels, in the same order."""

    pixels: Pixels
    """Shape (N, H, W, C), 0 to 255: a box that each image lies in the upper left corner of."""
    labels: NDArray[Any]
    """Class of each image, int64 (N,), from 0 up to the number of classes, exclusive; or, where an
    image may be of several classes, float32 (N, K), 1 for each class that it is of and else 0."""
    sizes: NDArray[np.int64] | None = None
    """Height and width [pixels] of each image in its box, (N, 2); None: all fill it."""


def class_counts(labels: NDArray[Any], num_classes: int) -> NDArray[np.int64]:
    """Returns how many images are of each class, (K,), by labels (N,) or (N, K)."""
    if labels.ndim == 1:
        return np.bincount(labels, minlength=num_classes)
    return np.asarray(labels.sum(axis=0, dtype=np.float64).astype(np.int64))


def main_classes(labels: NDArray[Any]) -> NDArray[np.int64]:
    """Returns a class for each image, (N,), by which sets are cut and balanced, of labels as above.

    Of several it is the one that the fewest images have, as that is the hardest to share out; an
    image of no class gets the number K.
    """
    if labels.ndim == 1:
        return labels
    num_images, num_classes = labels.shape
    counts = np.append(class_counts(labels, num_classes), num_images + 1)
    is_of = np.column_stack([labels > 0, np.ones(num_images, dtype=bool)])
    return np.asarray(np.where(is_of, counts, num_images + 2).argmin(axis=1))


class Encoded(NamedTuple):
    """An image as it lies in a file."""

    file: Path | bytes
    name: str
    """How to call it in messages: a path, or a file and row."""


class EncodedPart(NamedTuple):
    """The images of one part of a data set, before they are decoded."""

    name: str
    """How to call it in messages."""
    images: Callable[[], Iterable[Encoded]]
    """Gives them in their order, from the first on at each call."""
    labels: NDArray[Any]
    """As those of `Images`: one an image."""


class EncodedData(NamedTuple):
    """A whole data set, before its images are decoded."""

    train: EncodedPart
    test: EncodedPart | None
    class_names: tuple[str, ...]
    num_validation: int = 0
    """As of `DecodedData`."""
    groups: NDArray[np.int64] | None = None
    """As of `DecodedData`."""


class DecodedData(NamedTuple):
    """A whole data set in memory."""

    train: Images
    test: Images | None
    """None where the data set brings no test part."""
    class_names: tuple[str, ...]
    num_validation: int = 0
    """How many of the training images, the last ones, are a validation part that the set brings."""
    groups: NDArray[np.int64] | None = None
    """Group of each training image, (N,): a patient or a video, whose images must stay in one part
    of a split; None: each image is on its own."""


class DatasetConfig(Config):
    """Base of the data sets: where one lies and how it is read."""

    location_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that say where the data lie, not what they are: no part of a workload's identity."""

    def located(self) -> Self:
        """Returns the same data set with absolute paths, which mean the same in every process."""
        given = {name: getattr(self, name) for name in self.location_fields}
        absolute = {name: os.path.abspath(path) for name, path in given.items() if path is not None}
        return self.model_copy(update=absolute)

    def num_train(self) -> int:
        """Returns the number of images of the training part, without decoding any.

        Raises: DataError if the data are missing; it names the folder and what to try.
        """
        raise NotImplementedError

    def num_test(self) -> int | None:
        """Returns the number of images of the test part; None if the data set brings none."""
        raise NotImplementedError

    def num_validation(self) -> int:
        """Returns how many of the training images, the last ones, are a validation part."""
        return 0

    def notes(self) -> Iterable[str]:
        """Returns what a user should know of what lies there, such as what is not read."""
        return ()

    def sources(self) -> list[Path]:
        """Returns the files whose size and time of change key the cache; some may be missing."""
        raise NotImplementedError

    def decode(self, *, download: bool, on_progress: OnProgress) -> DecodedData:
        """Returns every image, decoded; takes long.

        `download` fetches missing data, where the data set knows from where.

        Raises: DataError if data are missing or unreadable; it names the file and row.
        """
        raise NotImplementedError


@contextmanager
def reading(dataset: DatasetConfig) -> Iterator[None]:
    """Turns errors of the file system, and of too little memory, within into DataError."""
    name = repr(dataset)
    name = name if len(name) <= 300 else f"{name[:299]}…"
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise DataError(f"{error.filename or name} cannot be read: {why}.") from error
    except MemoryError as error:
        raise DataError(
            f"{name} does not fit in this machine's memory. Set a smaller `image_size`"
            " where there is one, or take fewer images."
        ) from error
