"""Images in Parquet and Arrow files, in the layouts that Hugging Face's hub and `datasets` use."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from tune_speed.core.config import left_out
from tune_speed.core.errors import DataError
from tune_speed.data.base import Counts, Encoded, EncodedData, Labels, number_groups, row_of
from tune_speed.data.datasets.image_folder import ORDER, check_column
from tune_speed.data.datasets.shards import MAX_IMAGE_BYTES, PartFiles

if TYPE_CHECKING:
    from pyarrow import Array, ChunkedArray, DataType, Schema

ROWS_AT_ONCE = 500
# Of one file. A few bytes can encode any number of equal rows.
MAX_ROWS = 100_000_000
# What pyarrow raises, besides its own errors, of schemas that contradict themselves.
DAMAGE = (UnicodeError, KeyError, IndexError, OverflowError, MemoryError)


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
    group_column: str | None = left_out(None)
    """Column of what must stay in one part, as a patient or a video; null: none."""
    # Hashes on record hold it whether it is null or not.
    image_size: int | None = Field(default=None, ge=1)
    """Height and width [pixels] to which images are scaled and cropped; None: all are alike."""

    def counts(self) -> Counts:
        if self.group_column is not None:
            return super().counts()
        train, validation, test = (sum(map(num_rows, self.files(part))) for part in ORDER)
        return Counts(train + validation, None if self.test is None else test, validation)

    def is_plain(self) -> bool:
        """Returns whether images are in the named column, and each place holds one part alone."""
        first = self.files("train")[0]
        is_one_part = all(
            self.files(part) in ([Path(place)], sorted(Path(place).glob("*.parquet")))
            for part, place in (("train", self.train), ("test", self.test))
            if place is not None
        )
        is_there = self.image_column in usable_columns(first)[0]
        return first.suffix != ".arrow" and is_there and is_one_part

    def listing(self) -> EncodedData:
        if (column := self.group_column) is None:
            return super().listing()
        own, theirs = (
            [str(value) for path in files for value in read_column(path, column, "group_column")]
            for files in (self.files("train", "validation"), self.files("test"))
        )
        if both := sorted({*own} & {*theirs}):
            raise DataError(f"No group may be in two parts, but {both[0]!r} is also in `test`.")
        return super().listing()._replace(groups=number_groups(own))

    def names_in(self, path: Path) -> tuple[str, ...] | None:
        """Returns the names in the metadata that Hugging Face's `datasets` writes."""
        with _open(path) as table:
            text = (table.schema.metadata or {}).get(b"huggingface", b"{}")
        try:
            node: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} must have JSON under `huggingface`, but: {error}") from error
        for key in ("info", "features", self.label_column):
            node = node.get(key) if isinstance(node, dict) else None
        # Of a column of lists.
        while isinstance(node, list) or (isinstance(node, dict) and "feature" in node):
            node = node["feature"] if isinstance(node, dict) else next(iter(node), None)
        names = node.get("names") if isinstance(node, dict) else None
        return tuple(map(str, names)) if isinstance(names, list) else None

    def labels_of(self, path: Path) -> Labels:
        import pyarrow as pa
        import pyarrow.compute as pc

        values, rows = read_column(path, self.label_column, "label_column"), None
        count, kind = len(values), values.type
        if not _holds_labels(kind):
            raise DataError(
                f"Column `{self.label_column}` of {path} must hold integers, texts or lists of"
                f" them, but holds {kind}."
            )
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            rows = np.repeat(np.arange(count), pc.list_value_length(values).to_numpy())
            values = pc.list_flatten(values)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        is_number = pa.types.is_integer(values.type)
        flat = values.to_numpy().astype(np.int64) if is_number else values.to_pylist()
        return Labels(np.array(flat, None if is_number else object), rows, count, row_of(path))

    def images_of(self, path: Path) -> Iterator[Encoded]:
        with _open(path) as table:
            column = image_column(table.schema, self.image_column)
            check_column(path, column, table.schema.names, field="image_column")
            kind = table.schema.field(column).type
            if not _holds_images(kind):
                raise DataError(
                    f"Column `{column}` of {path} must hold encoded images, as bytes or as a struct"
                    f" with `bytes` or `path`, but holds {kind}."
                )
            batches = (
                batch.slice(start, ROWS_AT_ONCE).to_pylist()
                for batch in table.columns(column)
                for start in range(0, len(batch), ROWS_AT_ONCE)
            )
            for row, value in enumerate(chain.from_iterable(batches)):
                yield Encoded(_content(value, path, row_of(path)(row)), row_of(path)(row))


def num_rows(path: Path) -> int:
    """Returns the number of rows, without reading them. Raises: DataError."""
    with _open(path) as table:
        return table.num_rows


def read_column(path: Path, column: str, field: str) -> "ChunkedArray":
    """Returns a column of a file. Raises: DataError if it is missing or has gaps."""
    import pyarrow as pa

    with _open(path) as table:
        check_column(path, column, table.schema.names, field=field)
        values = pa.chunked_array(table.columns(column), table.schema.field(column).type)
    if values.null_count:
        row = values.is_null().to_numpy().argmax()
        raise DataError(f"Column `{column}` must have no gaps, but {row_of(path)(row)} is null.")
    return values


def _content(value: Any, path: Path, where: str) -> bytes | Path:
    fields = value if isinstance(value, dict) else {"bytes": value}
    content: bytes | None = fields.get("bytes")
    name: str | None = fields.get("path")
    if content is None and name and (path.parent / name).is_file():
        return path.parent / name
    if content is None:
        missing = f"none, and there is no file {path.parent / name}" if name else "none"
        raise DataError(f"Every row must hold an image, but {where} has {missing}.")
    if len(content) > MAX_IMAGE_BYTES:
        most = MAX_IMAGE_BYTES >> 20
        raise DataError(
            f"Images must have at most {most} MiB, but {where} has {len(content) >> 20}."
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

    fields = {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}
    if "path" in fields:
        return True
    kind = fields.get("bytes", kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _holds_labels(kind: "DataType") -> bool:
    import pyarrow as pa

    kind = kind.value_type if hasattr(kind, "value_type") else kind
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(is_text or pa.types.is_integer(kind))


class _Table(NamedTuple):
    schema: "Schema"
    num_rows: int
    columns: "Callable[[str], Iterator[Array]]"
    """A column by its name, in pieces."""


@contextmanager
def _open(path: Path) -> Iterator[_Table]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    kind = "Arrow" if path.suffix == ".arrow" else "Parquet"
    try:
        with pa.memory_map(str(path)) if kind == "Arrow" else ParquetFile(path) as file:
            table = (_arrow if kind == "Arrow" else _parquet)(file)
            if table.num_rows > MAX_ROWS:
                raise DataError(
                    f"{path} must have at most {MAX_ROWS:,} rows, but says it has"
                    f" {table.num_rows:,}. Split it into several files."
                )
            yield table
    except (pa.ArrowException, OSError, *DAMAGE) as error:
        raise DataError(f"{path} must be a readable {kind} file, but: {error}") from error


def _parquet(file: Any) -> _Table:
    def columns(name: str) -> "Iterator[Array]":
        return (b.column(0) for b in file.iter_batches(ROWS_AT_ONCE, columns=[name]))

    return _Table(file.schema_arrow, int(file.metadata.num_rows), columns)


def _arrow(file: Any) -> _Table:
    """Returns the table of a stream, which `datasets` writes, or of a file with a footer."""
    import pyarrow as pa

    try:
        table = pa.ipc.open_file(file).read_all()
    except pa.ArrowInvalid:
        file.seek(0)
        table = pa.ipc.open_stream(file).read_all()

    def columns(name: str) -> "Iterator[Array]":
        # Arrow trusts offsets, which in a damaged file may lie beyond its end.
        table.column(name).validate(full=True)
        return iter(table.column(name).chunks)

    return _Table(table.schema, table.num_rows, columns)
