"""Images in Parquet files, in the layout that the Hugging Face hub uses."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import DataError
from tune_speed.data.base import Encoded, EncodedData, EncodedPart
from tune_speed.data.datasets.image_files import ImageFiles
from tune_speed.data.datasets.image_folder import PARTS, is_visible

if TYPE_CHECKING:
    from pyarrow import DataType
    from pyarrow.parquet import ParquetFile


FileLabels = list[tuple[Path, NDArray[np.int64]]]
"""The labels of each file of a part, in its order."""


class ImageParquet(ImageFiles):
    """Encoded images in a column of Parquet files, and their labels in another.

    Class names come from the metadata that Hugging Face's `datasets` writes; without it, classes
    are called by their numbers.
    """

    location_fields: ClassVar[frozenset[str]] = frozenset({"train", "validation", "test"})

    train: str
    """File of the training part, or a folder whose `*.parquet` files are read in name order."""
    validation: str | None = Field(default=None, exclude_if=lambda place: place is None)
    """File or folder of the validation part; None: a part of the training images is set aside."""
    test: str | None = None
    """File or folder of the test part; None: a part of the training images is set aside."""
    image_column: str = "img"
    """Column of the images: a struct with encoded `bytes`, or the bytes themselves."""
    label_column: str = "label"
    """Column of the labels: integers from 0."""
    image_size: int | None = Field(default=None, ge=1)
    """Height and width [pixels] to which images are scaled and cropped; None: all are alike."""

    def num_train(self) -> int:
        return sum(map(num_rows, self._files("train"))) + self.num_validation()

    def num_validation(self) -> int:
        return sum(map(num_rows, self._files("validation")))

    def num_test(self) -> int | None:
        return None if self.test is None else sum(map(num_rows, self._files("test")))

    def sources(self) -> list[Path]:
        return [path for part in ("train", "validation", "test") for path in self._files(part)]

    def listing(self) -> EncodedData:
        learnt = self._labels("train", "validation")
        parts = [learnt] if self.test is None else [learnt, self._labels("test")]
        names = self._class_names(learnt)
        for path, labels in (item for part in parts for item in part):
            check_labels(path, labels, len(names))
        train, *test = map(self._encoded, parts)
        return EncodedData(train, test[0] if test else None, names, self.num_validation())

    def _files(self, part: str) -> list[Path]:
        place = getattr(self, part)
        return [] if place is None else find_files(part, place)

    def _labels(self, *parts: str) -> FileLabels:
        files = [path for part in parts for path in self._files(part)]
        return [(path, read_labels(path, self.label_column)) for path in files]

    def _class_names(self, train: FileLabels) -> tuple[str, ...]:
        names = class_names(train[0][0], self.label_column)
        if names is not None:
            return names
        largest = max(int(labels.max(initial=0)) for _, labels in train)
        num_images = sum(len(labels) for _, labels in train)
        if largest >= num_images > 0:
            raise DataError(
                f"Labels in `{self.train}` must number the classes from 0, but the largest is"
                f" {largest} with {num_images} images. Is `{self.label_column}` the right column?"
            )
        return tuple(str(label) for label in range(largest + 1))

    def _encoded(self, labels: FileLabels) -> EncodedPart:
        files = [path for path, _ in labels]
        name = str(files[0] if len(files) == 1 else files[0].parent)

        def images() -> Iterator[Encoded]:
            return (image for path in files for image in read_images(path, self.image_column))

        return EncodedPart(name, images, np.concatenate([of_file for _, of_file in labels]))


ROWS_AT_ONCE = 500
# Of one file. A few bytes can encode any number of equal rows.
MAX_ROWS = 100_000_000
MAX_IMAGE_BYTES = 1 << 28
NUMBER_THEM = (
    "Number the classes, as pandas does:"
    ' `frame["label"] = frame["label"].astype("category").cat.codes`.'
)
# What pyarrow raises, besides its own errors, of schemas that contradict themselves.
DAMAGE = (UnicodeError, KeyError, IndexError, OverflowError, MemoryError)


def find_files(field: str, place: str) -> list[Path]:
    """Returns the file `place`, or the `*.parquet` files of the folder `place` in name order.

    Raises: DataError if there is none, or the folder's are of several parts by their names; `field`
        is the configuration's that named the place.
    """
    path = Path(place)
    if path.is_file():
        return [path]
    if files := sorted(each for each in path.glob("*.parquet") if is_visible(each.name)):
        one_of = {part_of(each.name): each.name for each in files}
        if len(one_of) > 1:
            raise DataError(
                f"`{field}` must be the files of one part, but {path.absolute()} holds those of"
                f" several, by their names: {', '.join(sorted(one_of.values()))}. Put them into a"
                " folder a part, or name one file."
            )
        return files
    found = "holds no *.parquet files" if path.is_dir() else "does not exist"
    raise DataError(
        f"`{field}` must be a Parquet file or a folder of them, but {path.absolute()} {found}. Set"
        f" `{field}` to where the data are; relative paths start at the study file's folder."
    )


def part_of(name: str) -> str | None:
    """Returns the part that a word of a file's or folder's name says; None if none does."""
    return next((PARTS[word] for word in re.split("[^a-z]+", name.lower()) if word in PARTS), None)


def num_rows(path: Path) -> int:
    """Returns the number of rows, from the file's footer. Raises: DataError."""
    with _open(path) as file:
        return int(file.metadata.num_rows)


def class_names(path: Path, label_column: str) -> tuple[str, ...] | None:
    """Returns the names in the metadata that Hugging Face's `datasets` writes; None without any."""
    with _open(path) as file:
        text = (file.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    try:
        node: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} must have JSON under `huggingface`, but: {error}") from error
    for key in ("info", "features", label_column, "names"):
        node = node.get(key) if isinstance(node, dict) else None
    return tuple(str(name) for name in node) if isinstance(node, list) else None


def read_labels(path: Path, column: str) -> NDArray[np.int64]:
    """Returns the labels of a file. Raises: DataError for a missing column, null or no integers."""
    import pyarrow as pa

    with _open(path) as file:
        kind = _column_type(file, path, column, field="label_column")
        if not pa.types.is_integer(kind):
            raise DataError(
                f"Column `{column}` of {path} must hold integers, but holds {kind}. {NUMBER_THEM}"
            )
        labels = file.read(columns=[column])[column]
    if labels.null_count:
        row = labels.is_null().to_numpy().argmax()
        raise DataError(f"Column `{column}` must have no gaps, but {_row(path, row)} is null.")
    return np.asarray(labels.to_numpy().astype(np.int64))


def check_labels(path: Path, labels: NDArray[np.int64], num_classes: int) -> None:
    """Raises DataError with the first row whose label is not in 0 to num_classes - 1."""
    is_outside = (labels < 0) | (labels >= num_classes)
    if is_outside.any():
        row = int(is_outside.argmax())
        raise DataError(
            f"Labels must lie in 0 to {num_classes - 1}, but {_row(path, row)} has {labels[row]}."
        )


def read_images(path: Path, column: str) -> Iterator[Encoded]:
    """Yields the encoded images of a file. Raises: DataError for a missing or unfit column."""
    with _open(path) as file:
        kind = _column_type(file, path, column, field="image_column")
        if not _holds_images(kind):
            raise DataError(
                f"Column `{column}` of {path} must hold encoded images, as bytes or as a struct"
                f" with `bytes`, but holds {kind}."
            )
        row = 0
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=[column]):
            for value in batch.column(0).to_pylist():
                content = value["bytes"] if isinstance(value, dict) else value
                if content is not None and len(content) > MAX_IMAGE_BYTES:
                    raise DataError(
                        f"An encoded image must have at most {MAX_IMAGE_BYTES >> 20} MiB, but"
                        f" {_row(path, row)} has {len(content) >> 20}."
                    )
                if content is None:
                    raise DataError(
                        f"Every row must hold an image, but {_row(path, row)} has none."
                    )
                yield Encoded(content, _row(path, row))
                row += 1


def usable_columns(path: Path) -> tuple[list[str], list[str], list[str]]:
    """Returns the columns that can hold images, those that can hold labels, and all with types."""
    import pyarrow as pa

    with _open(path) as file:
        kinds = {field.name: field.type for field in file.schema_arrow}
    images = [name for name, kind in kinds.items() if _holds_images(kind)]
    labels = [name for name, kind in kinds.items() if pa.types.is_integer(kind)]
    return images, labels, [f"`{name}` ({kind})" for name, kind in kinds.items()]


def _holds_images(kind: "DataType") -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _column_type(file: "ParquetFile", path: Path, column: str, *, field: str) -> "DataType":
    schema = file.schema_arrow
    if column not in schema.names:
        raise DataError(
            f"{path} must have a column `{column}`, but has only {', '.join(schema.names)}"
            f"{did_you_mean(column, schema.names) or '.'} Set `{field}`."
        )
    return schema.field(column).type


@contextmanager
def _open(path: Path) -> Iterator["ParquetFile"]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            if file.metadata.num_rows > MAX_ROWS:
                raise DataError(
                    f"{path} must have at most {MAX_ROWS:,} rows, but says it has"
                    f" {file.metadata.num_rows:,}. Split it into several files."
                )
            yield file
    except (pa.ArrowException, OSError, *DAMAGE) as error:
        raise DataError(f"{path} must be a readable Parquet file, but: {error}") from error


def _row(path: Path, row: int) -> str:
    """Returns how to call a row, counted from 0 as pandas and `datasets` do."""
    return f"row {row} of {path}"
