"""What every data set gives: its size without decoding, its files, and its decoded images."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tune_speed.core.config import Config, did_you_mean
from tune_speed.core.errors import DataError

Array = NDArray[Any]
Indices = NDArray[np.int64]
OnProgress = Callable[[int, int], None]
"""Progress callback: `on_progress(images_done, images_total)`."""


class _Rows:
    """Some of the images of a file, in an order of their own."""

    rows: Indices
    box: tuple[int, ...]
    """Height, width and channels."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(M, H, W, C)."""
        return (len(self.rows), *self.box)

    def __len__(self) -> int:
        return len(self.rows)


class MappedRows(_Rows):
    """Some rows of a mapped array; read on access."""

    # All processes that map the file share its pages; of a copy each would have its own.
    def __init__(self, whole: NDArray[np.uint8], rows: Indices) -> None:
        """Reads nothing yet of the rows (M,) of the mapped array (N, H, W, C)."""
        self.whole, self.rows, self.box = whole, rows, whole.shape[1:]

    def __getitem__(self, which: slice) -> NDArray[np.uint8]:
        """Returns a copy of the rows in a range, (B, H, W, C)."""
        return self.whole.take(self.rows[which], axis=0)

    def take(self, indices: Indices) -> "MappedRows":
        return MappedRows(self.whole, self.rows[indices])


class EncodedRows(_Rows):
    """Some images of a file of JPEG images; decoded on access."""

    def __init__(
        self, encoded: NDArray[np.uint8], ends: Indices, box: Sequence[int], rows: Indices
    ) -> None:
        """Takes JPEG files one after the other, where each ends, and the box (H, W, C) of all.

        `rows` (M,): which images these are.
        """
        self.encoded, self.ends, self.box, self.rows = encoded, ends, tuple(box), rows

    def __getitem__(self, which: slice) -> NDArray[np.uint8]:
        """Returns the images in a range, each in the upper left corner of its box."""
        from tune_speed.data.boxes import decode

        rows = self.rows[which]
        return decode(self.encoded, self.ends, rows, np.empty((len(rows), *self.box), np.uint8))

    def take(self, indices: Indices) -> "EncodedRows":
        return EncodedRows(self.encoded, self.ends, self.box, self.rows[indices])


Pixels = NDArray[np.uint8] | MappedRows | EncodedRows
"""Images (N, H, W, C), in memory or in a file."""


def whole_of(pixels: Pixels) -> tuple[NDArray[np.uint8], Indices | None]:
    """Returns an array that holds the images, and where: None, if at their own places."""
    if isinstance(pixels, EncodedRows):
        return pixels[:], None
    if isinstance(pixels, MappedRows):
        return pixels.whole, pixels.rows
    return pixels, None


def file_map(array: Array) -> np.memmap[Any, Any] | None:
    """Returns the memory map that `array` is the whole of, or None."""
    base = array.base
    return base if isinstance(base, np.memmap) and base.shape == array.shape else None


class Images(NamedTuple):
    """Images and their labels, in the same order."""

    pixels: Pixels
    """Shape (N, H, W, C), 0 to 255: a box that each image lies in the upper left corner of."""
    labels: Array
    """Class of each image, int64 (N,), from 0 up to the number of classes, exclusive; or, where an
    image may be of several classes, float32 (N, K), 1 for each class that it is of and else 0."""
    sizes: Indices | None = None
    """Height and width [pixels] of each image in its box, (N, 2); None: all fill it."""

    @classmethod
    def of(cls, arrays: Mapping[str, Array], part: str) -> "Images | None":
        """Returns a part from the arrays `<part>_labels`, `_pixels` and so on; None without."""
        labels, sizes = arrays.get(f"{part}_labels"), arrays.get(f"{part}_sizes")
        if labels is None:
            return None
        if f"{part}_encoded" not in arrays:
            return cls(arrays[f"{part}_pixels"], labels, sizes)
        encoded, ends, box = (arrays[f"{part}_{name}"] for name in ("encoded", "ends", "box"))
        return cls(EncodedRows(encoded, ends, box.tolist(), np.arange(len(ends))), labels, sizes)


def class_counts(labels: Array, num_classes: int) -> Indices:
    """Returns how many images are of each class, (K,), by labels (N,) or (N, K)."""
    if labels.ndim == 1:
        return np.bincount(labels, minlength=num_classes)
    return np.asarray(labels.sum(axis=0, dtype=np.float64).astype(np.int64))


def main_classes(labels: Array) -> Indices:
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
    labels: Array
    """As those of `Images`: one an image."""


class EncodedData(NamedTuple):
    """A whole data set, before its images are decoded."""

    train: EncodedPart
    test: EncodedPart | None
    class_names: tuple[str, ...]
    num_validation: int = 0
    """As of `DecodedData`."""
    groups: Indices | None = None
    """As of `DecodedData`."""


class Labels(NamedTuple):
    """Labels as a file has them."""

    values: Array
    """Numbers of classes, int64 (T,), or their names, objects (T,)."""
    rows: Indices | None
    """Image of each value, (T,), from 0; None: the image at the same place, one value each."""
    num_images: int
    where: Callable[[int], str]
    """How to call an image in messages."""

    @classmethod
    def of(cls, given: Sequence[Any], where: Callable[[int], str]) -> Self:
        """Takes a number or a name an image, or lists of them if images are of several classes."""
        lists = [each if isinstance(each, list) else [each] for each in given]
        values = [*chain.from_iterable(lists)]
        are_numbers = all(isinstance(value, int) and abs(value) < 2**63 for value in values)
        array = np.array(values, int) if are_numbers else np.array([*map(str, values)], object)
        several = any(isinstance(each, list) for each in given)
        rows = np.repeat(np.arange(len(lists)), [*map(len, lists)]) if several else None
        return cls(array, rows, len(lists), where)


class Listed(NamedTuple):
    """The images of one file, or of one part."""

    part: str
    """`train`, `validation` or `test`."""
    images: Callable[[], Iterable[Encoded]]
    labels: Labels


def encoded_data(
    name: str,
    files: Sequence[Listed],
    class_names: Sequence[str] | None = None,
    groups: Indices | None = None,
) -> EncodedData:
    """Returns a data set of files that are in order of their parts; see `number_labels`."""
    learnt = [file for file in files if file.part != "test"]
    tested = files[len(learnt) :]
    labels, names = number_labels([file.labels for file in files], len(learnt), class_names)

    def part(of: Sequence[Listed], numbered: Sequence[Array]) -> EncodedPart:
        def images() -> Iterable[Encoded]:
            return chain.from_iterable(file.images() for file in of)

        return EncodedPart(name, images, np.concatenate(numbered))

    train = part(learnt, labels[: len(learnt)])
    test = part(tested, labels[len(learnt) :]) if tested else None
    held = sum(file.labels.num_images for file in files if file.part == "validation")
    return EncodedData(train, test, tuple(map(shown, names)), held, groups)


def number_labels(
    files: Sequence[Labels], num_learnt: int = 1, names: Sequence[str] | None = None
) -> tuple[list[Array], tuple[str, ...]]:
    """Returns labels, int64 (N,) a file, or float32 (N, K) if one has `rows`, and class names.

    Names are numbered in sorted order, and by value if all are whole numbers; `names` are those of
    numbers, if they are known. The first `num_learnt` files say which classes there are.

    Raises: DataError for a class that these do not have, with its row.
    """
    values = [file.values for file in files]
    if any(each.dtype == object for each in values):
        found = {str(value) for each in values[:num_learnt] for value in each.tolist()}
        are_numbers = all(name.isdecimal() and len(name) < 19 for name in found)
        names = sorted(found, key=lambda name: (int(name) if are_numbers else 0, name))
        number = {name: place for place, name in enumerate(names)}
        values = [np.array([number.get(str(v), -1) for v in each.tolist()], int) for each in values]
    elif names is None:
        largest = max(int(each.max(initial=0)) for each in values[:num_learnt])
        if largest >= (count := sum(file.num_images for file in files[:num_learnt])) > 0:
            raise DataError(
                f"Labels must number the classes from 0, but the largest is {largest} with {count}"
                f" images, from {files[0].where(0)} on. Is this the right column?"
            )
        names = [*map(str, range(largest + 1))]
    several = any(file.rows is not None for file in files)
    made = [_numbered(*pair, names, several) for pair in zip(files, values, strict=True)]
    return made, tuple(names)


def _numbered(file: Labels, numbers: Array, names: Sequence[str], several: bool) -> Array:
    rows = np.arange(file.num_images) if file.rows is None else file.rows
    for place in np.flatnonzero((numbers < 0) | (numbers >= len(names)))[:1]:
        where, given = file.where(int(rows[place])), file.values[place]
        if not isinstance(given, str):
            raise DataError(f"Labels must lie in 0 to {len(names) - 1}, but {where} has {given}.")
        near = did_you_mean(given, names) or "."
        must = "Labels must be among those of the training part"
        raise DataError(f"{must}, but {where} has `{shown(given)}`{near}")
    if not several:
        return numbers
    labels = np.zeros((file.num_images, len(names)), np.float32)
    labels[rows, numbers] = 1
    return labels


def number_groups(names: Iterable[Any]) -> Indices:
    """Returns a number for the group of each image, (N,), by their names."""
    return np.unique([*map(str, names)], return_inverse=True)[1].astype(np.int64)


def row_of(file: str | Path) -> Callable[[int], str]:
    """Returns how to call a row of a file, by its number, in messages."""
    return lambda row: f"row {row} of {file}"


def shown(name: str | Path) -> str:
    """Returns a name as texts of ours can hold it: old archives have other encodings than UTF-8."""
    return os.fsencode(name).decode(errors="backslashreplace")


class DecodedData(NamedTuple):
    """A whole data set in memory."""

    train: Images
    test: Images | None
    """None where the data set brings no test part."""
    class_names: tuple[str, ...]
    num_validation: int = 0
    """How many of the training images, the last ones, are a validation part that the set brings."""
    groups: Indices | None = None
    """Group of each training image, (N,): a patient or a video, whose images must stay in one part
    of a split; None: each image is on its own."""


class Grouped(NamedTuple):
    """What a cut of the training images by whole groups follows from."""

    labels: Array
    """As those of `Images`."""
    groups: Indices
    """As of `DecodedData`."""


class Counts(NamedTuple):
    """The number of images of each part, before any is decoded."""

    train: int
    test: int | None
    validation: int = 0
    """How many of the training images, the last ones, are a validation part."""
    grouped: Grouped | None = None
    """None: each image is on its own."""

    @classmethod
    def of(cls, data: Any) -> Self:
        """Counts a data set that is listed, decoded or prepared."""
        labels, num_test = data.train.labels, None if data.test is None else len(data.test.labels)
        grouped = None if data.groups is None else Grouped(labels, data.groups)
        return cls(len(labels), num_test, data.num_validation, grouped)


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
        return self.counts().train

    def num_test(self) -> int | None:
        """Returns the number of images of the test part; None if the data set brings none."""
        return self.counts().test

    def num_validation(self) -> int:
        """Returns how many of the training images, the last ones, are a validation part."""
        return 0 if type(self).counts is DatasetConfig.counts else self.counts().validation

    def counts(self) -> Counts:
        """Returns all numbers at once; in its place, a class may have `num_train` and `num_test`.

        Raises: DataError as `num_train`.
        """
        return Counts(self.num_train(), self.num_test(), self.num_validation())

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
