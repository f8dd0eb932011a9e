"""Images in Parquet and Arrow files, in the layouts that Hugging Face's hub and `datasets` use."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import DataError
from tune_speed.data.base import Counts, Encoded, EncodedData, EncodedPart
from tune_speed.data.datasets.image_files import ImageFiles
from tune_speed.data.datasets.image_folder import PARTS, is_visible
from tune_speed.data.datasets.image_table import Labels, number_labels

if TYPE_CHECKING:
    from pyarrow import Array, ChunkedArray, DataType, RecordBatch, Schema


class PartFiles(ImageFiles):
    """Base of the data sets whose parts are files of many images each."""

    location_fields: ClassVar[frozenset[str]] = frozenset({"train", "validation", "test"})
    suffixes: ClassVar[tuple[str, ...]] = ()
    """Of the files that are looked for in folders; the first that is found is read."""

    train: str
    """File of the training part, files as in `shards/{000..146}.tar`, or a folder whose files are
    read in name order. Of a folder that holds several parts, by the names of files or folders in
    it, those of this part are read."""
    validation: str | None = Field(default=None, exclude_if=lambda place: place is None)
    """File or folder of the validation part; None: a part of the training images is set aside."""
    test: str | None = None
    """File or folder of the test part; None: a part of the training images is set aside."""

    def files(self, *parts: str) -> list[Path]:
        """Returns the files of parts, one part after the other. Raises: DataError."""
        places = [(part, getattr(self, part)) for part in parts]
        named = [(p, each) for p, place in places if place is not None for each in _expanded(place)]
        return [path for part, place in named for path in find_files(part, place, self.suffixes)]

    def sources(self) -> list[Path]:
        return self.files("train", "validation", "test")

    def labels_of(self, path: Path) -> Labels:
        """Returns the labels of a file. Raises: DataError."""
        raise NotImplementedError

    def images_of(self, path: Path) -> Iterator[Encoded]:
        """Yields the images of a file. Raises: DataError."""
        raise NotImplementedError

    def names_in(self, path: Path) -> tuple[str, ...] | None:
        """Returns the names of the classes that a file says; None: it says none."""

    def groups_of(self, learnt: Sequence[Path], tested: Sequence[Path]) -> NDArray[np.int64] | None:
        """Returns the group of each image of the files `learnt`. Raises: DataError."""

    def listing(self) -> EncodedData:
        learnt, tested = self.files("train", "validation"), self.files("test")
        files = [self.labels_of(path) for path in (*learnt, *tested)]
        names = self.names_in(learnt[0])
        made, names = number_labels(files, num_learnt=len(learnt), names=names)
        train = self._part(learnt, made[: len(learnt)])
        test = self._part(tested, made[len(learnt) :]) if tested else None
        held = sum(map(len, made[len(self.files("train")) : len(learnt)]))
        return EncodedData(train, test, names, held, self.groups_of(learnt, tested))

    def _part(self, files: Sequence[Path], labels: Sequence[NDArray[Any]]) -> EncodedPart:
        def images() -> Iterator[Encoded]:
            return (image for path in files for image in self.images_of(path))

        name = str(files[0] if len(files) == 1 else files[0].parent)
        return EncodedPart(name, images, np.concatenate(labels))


class ImageParquet(PartFiles):
    """Encoded images in a column of Parquet or Arrow files, and their labels in another.

    Files are those of the Hugging Face hub, or what `save_to_disk` writes: `*.parquet`, else
    `*.arrow`. Class names come from the metadata that Hugging Face's `datasets` writes; without it,
    classes are called by their numbers. Labels that are texts are numbered in sorted order, and
    lists of labels are those of images of several classes.
    """

    suffixes: ClassVar[tuple[str, ...]] = (".parquet", ".arrow")

    image_column: str = "img"
    """Column of the images: a struct with encoded `bytes`, or with the `path` of a file, or the
    bytes themselves. Where there is no `img`: `image`, or the only column of images."""
    label_column: str = "label"
    """Column of the labels: integers from 0, texts, or lists of either."""
    group_column: str | None = Field(default=None, exclude_if=lambda column: column is None)
    """Column of what must stay in one part, as a patient or a video; null: none."""
    # Hashes on record hold it whether it is null or not.
    image_size: int | None = Field(default=None, ge=1)
    """Height and width [pixels] to which images are scaled and cropped; None: all are alike."""

    def counts(self) -> Counts:
        if self.group_column is not None:
            return super().counts()
        train, validation, test = (
            sum(map(num_rows, self.files(part))) for part in ("train", "validation", "test")
        )
        return Counts(train + validation, None if self.test is None else test, validation)

    def is_plain(self) -> bool:
        """Returns whether images are in the named column, and each place holds one part alone."""
        first = self.files("train")[0]
        images, _, _ = usable_columns(first)
        places = [(part, getattr(self, part)) for part in ("train", "test")]
        is_one_part = all(
            self.files(part) in ([Path(place)], sorted(Path(place).glob("*.parquet")))
            for part, place in places
            if place is not None
        )
        return first.suffix != ".arrow" and self.image_column in images and is_one_part

    def labels_of(self, path: Path) -> Labels:
        return read_labels(path, self.label_column)

    def images_of(self, path: Path) -> Iterator[Encoded]:
        return read_images(path, self.image_column)

    def names_in(self, path: Path) -> tuple[str, ...] | None:
        return class_names(path, self.label_column)

    def groups_of(self, learnt: Sequence[Path], tested: Sequence[Path]) -> NDArray[np.int64] | None:
        if (column := self.group_column) is None:
            return None
        own, theirs = (
            [str(value) for path in files for value in read_column(path, column, "group_column")]
            for files in (learnt, tested)
        )
        if both := sorted({*own} & {*theirs}):
            raise DataError(f"No group may be in two parts, but {both[0]!r} is also in `test`.")
        return np.unique(np.array(own), return_inverse=True)[1].astype(np.int64)


ROWS_AT_ONCE = 500
BRACES = re.compile(r"(.*?)\{([^{}]*)\}(.*)", re.DOTALL)
# Of one file. A few bytes can encode any number of equal rows.
MAX_ROWS = 100_000_000
MAX_IMAGE_BYTES = 1 << 28
# What pyarrow raises, besides its own errors, of schemas that contradict themselves.
DAMAGE = (UnicodeError, KeyError, IndexError, OverflowError, MemoryError)


def find_files(field: str, place: str, suffixes: Sequence[str]) -> list[Path]:
    """Returns the file `place`, or the files of a folder and of those in it, in name order.

    Of a folder of several parts, by the names of files and folders in it, those of the part `field`
    are returned, which is the configuration's that named the place.

    Raises: DataError if there is none, or it is not clear of which part one is.
    """
    path = Path(place)
    if path.is_file():
        return [path]
    for suffix in suffixes:
        found = [
            each for each in sorted(path.rglob(f"*{suffix}")) if is_data(each.relative_to(path))
        ]
        part_of_file = {each: part_in(each.relative_to(path)) for each in found}
        one_of = {part: each.name for each, part in part_of_file.items()}
        if len(one_of) > 1 and (None in one_of or field not in one_of):
            raise DataError(
                f"`{field}` must be the files of one part, but {path.absolute()} holds those of"
                f" several, by their names: {', '.join(sorted(one_of.values()))}. Put them into a"
                " folder a part, or name one file."
            )
        if found:
            return [e for e, part in part_of_file.items() if len(one_of) == 1 or part == field]
    kinds = " or ".join(f"*{suffix}" for suffix in suffixes)
    found_there = f"holds no {kinds} files" if path.is_dir() else "does not exist"
    raise DataError(
        f"`{field}` must be a file ({kinds}) or a folder of them, but {path.absolute()}"
        f" {found_there}. Set `{field}` to where the data are; relative paths start at the study"
        " file's folder."
    )


def _expanded(pattern: str) -> list[str]:
    """Returns the places that braces stand for, `{a,b}` or `{000..146}`, in order."""
    found = BRACES.fullmatch(pattern)
    if found is None or Path(pattern).exists():
        return [pattern]
    before, inside, after = found.groups()
    low, dots, high = inside.partition("..")
    choices = inside.split(",")
    if dots and low.isdecimal() and high.isdecimal():
        choices = [f"{number:0{len(low)}}" for number in range(int(low), int(high) + 1)]
    return [before + choice + rest for choice in choices for rest in _expanded(after)]


def is_data(path: Path) -> bool:
    """Returns whether a file is read, by its path below the folder that is looked at."""
    # `datasets` leaves caches of what was computed beside what was saved.
    return all(map(is_visible, path.parts)) and not path.name.startswith("cache-")


def part_in(path: Path) -> str | None:
    """Returns the part that a file is of by its name, or else by that of a folder above it."""
    return next(filter(None, map(part_of, reversed(path.parts))), None)


def part_of(name: str) -> str | None:
    """Returns the part that a word of a file's or folder's name says; None if none does."""
    return next((PARTS[word] for word in re.split("[^a-z]+", name.lower()) if word in PARTS), None)


def num_rows(path: Path) -> int:
    """Returns the number of rows, without reading them. Raises: DataError."""
    with _open(path) as table:
        return table.num_rows


def class_names(path: Path, label_column: str) -> tuple[str, ...] | None:
    """Returns the names in the metadata that Hugging Face's `datasets` writes; None without any."""
    with _open(path) as table:
        text = (table.schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        node: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} must have JSON under `huggingface`, but: {error}") from error
    for key in ("info", "features", label_column):
        node = node.get(key) if isinstance(node, dict) else None
    # Of a column of lists.
    while isinstance(node, list) or (isinstance(node, dict) and "feature" in node):
        node = node["feature"] if isinstance(node, dict) else next(iter(node), None)
    names = node.get("names") if isinstance(node, dict) else None
    return tuple(str(name) for name in names) if isinstance(names, list) else None


def read_column(path: Path, column: str, field: str) -> "ChunkedArray":
    """Returns a column of a file. Raises: DataError if it is missing or has gaps."""
    import pyarrow as pa

    with _open(path) as table:
        kind = _column_type(table.schema, path, column, field=field)
        values = pa.chunked_array(table.columns(column), kind)
    if values.null_count:
        row = values.is_null().to_numpy().argmax()
        raise DataError(f"Column `{column}` must have no gaps, but {_row(path, row)} is null.")
    return values


def read_labels(path: Path, column: str) -> Labels:
    """Returns the labels of a file. Raises: DataError for a missing column, null or other types."""
    import pyarrow as pa

    values, rows = read_column(path, column, "label_column"), None
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        lengths = [len(each) for each in values.to_pylist()]
        rows = np.repeat(np.arange(len(lengths)), lengths)
        flat = [chunk.flatten() for chunk in values.chunks]
        count, values = len(values), pa.chunked_array(flat, values.type.value_type)
    else:
        count = len(values)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if not _holds_labels(values.type):
        raise DataError(
            f"Column `{column}` of {path} must hold integers, texts or lists of them, but holds"
            f" {values.type}."
        )
    texts = not pa.types.is_integer(values.type)
    numbers = np.array(values.to_pylist(), object) if texts else values.to_numpy().astype(np.int64)
    return Labels(numbers, rows, count, lambda row: _row(path, row))


def read_images(path: Path, column: str) -> Iterator[Encoded]:
    """Yields the encoded images of a file. Raises: DataError for a missing or unfit column."""
    with _open(path) as table:
        column = image_column(table.schema, column)
        kind = _column_type(table.schema, path, column, field="image_column")
        if not _holds_images(kind):
            raise DataError(
                f"Column `{column}` of {path} must hold encoded images, as bytes or as a struct"
                f" with `bytes` or `path`, but holds {kind}."
            )
        row = 0
        for batch in table.columns(column):
            for start in range(0, len(batch), ROWS_AT_ONCE):
                for value in batch.slice(start, ROWS_AT_ONCE).to_pylist():
                    yield Encoded(_content(value, path, row), _row(path, row))
                    row += 1


def _content(value: Any, path: Path, row: int) -> bytes | Path:
    """Returns an image's bytes, or its file. Raises: DataError."""
    fields = value if isinstance(value, dict) else {"bytes": value}
    content: bytes | None = fields.get("bytes")
    name: str | None = fields.get("path")
    if content is None and name and (path.parent / name).is_file():
        return path.parent / name
    if content is None:
        missing = f"none, and there is no file {path.parent / name}" if name else "none"
        raise DataError(f"Every row must hold an image, but {_row(path, row)} has {missing}.")
    if len(content) > MAX_IMAGE_BYTES:
        raise DataError(
            f"An encoded image must have at most {MAX_IMAGE_BYTES >> 20} MiB, but"
            f" {_row(path, row)} has {len(content) >> 20}."
        )
    return content


def image_column(schema: "Schema", column: str) -> str:
    """Returns the column of images that is read where `column` is set: see `ImageParquet`."""
    default = ImageParquet.model_fields["image_column"].default
    if column in schema.names or column != default:
        return column
    usable = [field.name for field in schema if _holds_images(field.type)]
    return "image" if "image" in usable else usable[0] if len(usable) == 1 else column


def usable_columns(path: Path) -> tuple[list[str], list[str], list[str]]:
    """Returns the columns that can hold images, those that can hold labels, and all with types."""
    with _open(path) as table:
        kinds = {field.name: field.type for field in table.schema}
    images = [name for name, kind in kinds.items() if _holds_images(kind)]
    labels = [name for name, kind in kinds.items() if _holds_labels(kind)]
    return images, labels, [f"`{name}` ({kind})" for name, kind in kinds.items()]


def _holds_images(kind: "DataType") -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind) and kind.get_field_index("path") >= 0:
        return True
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        kind = kind.field("bytes").type
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _holds_labels(kind: "DataType") -> bool:
    import pyarrow as pa

    kind = kind.value_type if hasattr(kind, "value_type") else kind
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(is_text or pa.types.is_integer(kind))


def _column_type(schema: "Schema", path: Path, column: str, *, field: str) -> "DataType":
    if column not in schema.names:
        raise DataError(
            f"{path} must have a column `{column}`, but has only {', '.join(schema.names)}"
            f"{did_you_mean(column, schema.names) or '.'} Set `{field}`."
        )
    return schema.field(column).type


class _Table(NamedTuple):
    schema: "Schema"
    num_rows: int
    columns: "Callable[[str], Iterator[Array]]"
    """A column by its name, in pieces."""

    @classmethod
    def of(cls, file: Any) -> "_Table":
        def columns(name: str) -> "Iterator[Array]":
            batches = file.iter_batches(batch_size=ROWS_AT_ONCE, columns=[name])
            return (batch.column(0) for batch in batches)

        return cls(file.schema_arrow, int(file.metadata.num_rows), columns)


@contextmanager
def _open(path: Path) -> Iterator[_Table]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with pa.memory_map(str(path)) if path.suffix == ".arrow" else ParquetFile(path) as file:
            table = _arrow(file) if path.suffix == ".arrow" else _Table.of(file)
            if table.num_rows > MAX_ROWS:
                raise DataError(
                    f"{path} must have at most {MAX_ROWS:,} rows, but says it has"
                    f" {table.num_rows:,}. Split it into several files."
                )
            yield table
    except (pa.ArrowException, OSError, *DAMAGE) as error:
        kind = "Arrow" if path.suffix == ".arrow" else "Parquet"
        raise DataError(f"{path} must be a readable {kind} file, but: {error}") from error


def _arrow(file: Any) -> _Table:
    """Returns the table of a stream, which `datasets` writes, or of a file with a footer."""
    import pyarrow as pa

    try:
        footed = pa.ipc.open_file(file)
        schema, batches = footed.schema, [*map(footed.get_batch, range(footed.num_record_batches))]
    except pa.ArrowInvalid:
        file.seek(0)
        stream = pa.ipc.open_stream(file)
        schema, batches = stream.schema, list(stream)

    def column(batch: "RecordBatch", name: str) -> "Array":
        # Arrow trusts offsets, which in a damaged file may lie beyond its end.
        batch.column(name).validate(full=True)
        return batch.column(name)

    num_rows = sum(batch.num_rows for batch in batches)
    return _Table(schema, num_rows, lambda name: (column(batch, name) for batch in batches))


def _row(path: Path, row: int) -> str:
    """Returns how to call a row, counted from 0 as pandas and `datasets` do."""
    return f"row {row} of {path}"
