"""Image files that a CSV file lists, and how labels and groups of tables are numbered."""

import csv
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import DataError
from tune_speed.data.base import Encoded, EncodedData, EncodedPart
from tune_speed.data.datasets.image_files import ImageFiles
from tune_speed.data.datasets.image_folder import PARTS, shown


class Labels(NamedTuple):
    """Labels as a file has them."""

    values: NDArray[Any]
    """Numbers of classes, int64 (T,), or their names, objects (T,)."""
    rows: NDArray[np.int64] | None
    """Image of each value, (T,), from 0; None: the image at the same place, one value each."""
    num_images: int
    where: Callable[[int], str]
    """How to call an image in messages."""


class Numbered(NamedTuple):
    """Labels as data sets have them, of each file, and the names of the classes."""

    labels: list[NDArray[Any]]
    class_names: tuple[str, ...]


def number_labels(
    files: Sequence[Labels], *, num_learnt: int, names: Sequence[str] | None = None
) -> Numbered:
    """Returns labels of one file after another, int64 (N,), or float32 (N, K) if one has `rows`.

    Names are numbered in sorted order, and by value if all are whole numbers; `names` are those of
    numbers, if they are known. The first `num_learnt` files say which classes there are.

    Raises: DataError for a class that these do not have, with its row.
    """
    learnt = [file.values for file in files[:num_learnt]]
    if any(values.dtype == object for values in learnt):
        found = set(chain.from_iterable(values.tolist() for values in learnt))
        are_numbers = all(name.isdecimal() and len(name) < 19 for name in map(str, found))
        names = sorted(map(str, found), key=lambda name: (int(name) if are_numbers else 0, name))
        number = {name: place for place, name in enumerate(names)}
        numbers = [
            np.array([number.get(str(value), -1) for value in file.values.tolist()], np.int64)
            for file in files
        ]
    else:
        numbers = [file.values.astype(np.int64) for file in files]
        names = _names_of_numbers(numbers[:num_learnt], files) if names is None else names
    several = any(file.rows is not None for file in files)
    made = [_made(file, of, names, several) for file, of in zip(files, numbers, strict=True)]
    return Numbered(made, tuple(names))


def _names_of_numbers(learnt: Sequence[NDArray[np.int64]], files: Sequence[Labels]) -> list[str]:
    largest = max(int(numbers.max(initial=0)) for numbers in learnt)
    num_images = sum(file.num_images for file in files[: len(learnt)])
    if largest >= num_images > 0:
        raise DataError(
            f"Labels must number the classes from 0, but the largest is {largest} with {num_images}"
            f" images, from {files[0].where(0)} on. Is this the right column?"
        )
    return [str(number) for number in range(largest + 1)]


def _made(
    file: Labels, numbers: NDArray[np.int64], names: Sequence[str], several: bool
) -> NDArray[Any]:
    is_outside = (numbers < 0) | (numbers >= len(names))
    if is_outside.any():
        place = int(is_outside.argmax())
        where = file.where(place if file.rows is None else int(file.rows[place]))
        given = file.values[place]
        if isinstance(given, str):
            raise DataError(
                f"Labels must be among those of the training part, but {where} has `{shown(given)}`"
                f"{did_you_mean(given, names) or '.'}"
            )
        raise DataError(f"Labels must lie in 0 to {len(names) - 1}, but {where} has {given}.")
    if not several:
        return numbers
    labels = np.zeros((file.num_images, len(names)), np.float32)
    labels[np.arange(file.num_images) if file.rows is None else file.rows, numbers] = 1
    return labels


class _Row(NamedTuple):
    line: int
    path: str
    label: str
    group: str | None


class ImageTable(ImageFiles):
    """Image files that a CSV file lists, a row an image, with labels and perhaps parts and groups.

    Its first line names the columns; fields are separated by commas, semicolons or tabs, whichever
    the first line has most. Classes are numbered in sorted order, whole numbers by their value.
    """

    location_fields: ClassVar[frozenset[str]] = frozenset({"file"})

    file: str
    """The CSV file, in UTF-8."""
    path_column: str = "path"
    """Column of the image files; relative paths start at the folder of the CSV file."""
    label_column: str = "label"
    """Column of the labels: names or numbers of classes."""
    split_column: str | None = None
    """Column that says of which part an image is: `train`, `validation` or `test`, and nothing is
    `train`; null: `split`, if there is one. Parts that are not there are set aside from `train`."""
    group_column: str | None = None
    """Column of what must stay in one part, as a patient or a video; null: `group`, if there is
    one."""
    label_separator: str = Field(default="|", min_length=1)
    """What is between the labels of an image that is of several classes. If it is in any row,
    images may be of several classes or of none."""

    def sources(self) -> list[Path]:
        file = Path(self.file)
        paths = [file.parent / row.path for part in self._parts().values() for row in part]
        return [file, *dict.fromkeys(paths)]

    def listing(self) -> EncodedData:
        parts = self._parts()
        learnt = [*parts["train"], *parts["validation"]]
        if not parts["train"]:
            raise DataError(f"{self.file} must list images of the training part, but lists none.")
        listed = [learnt, parts["test"]] if parts["test"] else [learnt]
        several = any(self.label_separator in row.label for part in listed for row in part)
        numbered = number_labels([self._labels(p, several) for p in listed], num_learnt=1)
        train, *test = map(self._part, listed, numbered.labels)
        groups = None
        if any(row.group is not None for row in learnt):
            groups = np.unique([str(row.group) for row in learnt], return_inverse=True)[1]
        names = tuple(map(shown, numbered.class_names))
        held = len(parts["validation"])
        return EncodedData(train, test[0] if test else None, names, held, groups)

    def _part(self, rows: Sequence[_Row], labels: NDArray[Any]) -> EncodedPart:
        folder = Path(self.file).parent

        def images() -> Iterator[Encoded]:
            for row in rows:
                path = folder / row.path
                yield Encoded(path, f"{shown(path)} ({self._line(row.line)})")

        return EncodedPart(self.file, images, labels)

    def _labels(self, rows: Sequence[_Row], several: bool) -> Labels:
        def where(place: int) -> str:
            return self._line(rows[place].line)

        if not several:
            values = np.array([row.label for row in rows], object)
            if not all(values):
                missing = where(int((values == "").argmax()))
                raise DataError(f"Every image must have a label, but {missing} has none.")
            return Labels(values, None, len(rows), where)
        of = [[each.strip() for each in row.label.split(self.label_separator)] for row in rows]
        pairs = [(name, place) for place, names in enumerate(of) for name in names if name]
        names, places = np.array([n for n, _ in pairs], object), np.array([p for _, p in pairs])
        return Labels(names, places.astype(np.int64), len(rows), where)

    def _line(self, line: int) -> str:
        return f"line {line} of {self.file}"

    def _parts(self) -> dict[str, list[_Row]]:
        """Returns the rows of each part. Raises: DataError that names the line."""
        parts: dict[str, list[_Row]] = {part: [] for part in ("train", "validation", "test")}
        part_of_group: dict[str, str] = {}
        if not Path(self.file).is_file():
            raise DataError(
                f"`file` must be a CSV file, but there is no {Path(self.file).absolute()}. Relative"
                " paths start at the study file's folder."
            )
        with open(self.file, encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
            reader = _reader(lines)
            try:
                names = self._columns(reader.fieldnames or ())
                for fields in reader:
                    values = [fields[name] if name else "" for name in names]
                    where = self._line(reader.line_num)
                    if None in values or not values[0]:
                        raise DataError(f"{where} must have {', '.join(filter(None, names))}.")
                    path, label, split, group = (str(value).strip() for value in values)
                    part = PARTS.get(split.lower() or "train")
                    if part is None:
                        raise DataError(
                            f"`{names[2]}` must be one of {', '.join(parts)}, but is {split!r} in"
                            f" {where}."
                        )
                    if names[3] and part_of_group.setdefault(group, part) != part:
                        raise DataError(
                            f"No group may be in two parts, but that of {where}, {group!r}, is in"
                            f" {part} and {part_of_group[group]}."
                        )
                    row = _Row(reader.line_num, path, label, group if names[3] else None)
                    parts[part].append(row)
            except csv.Error as error:
                where = self._line(reader.reader.line_num)
                raise DataError(f"{where} must be CSV, but: {error}.") from error
        return parts

    def _columns(self, names: Sequence[str]) -> tuple[str, str, str | None, str | None]:
        """Returns the columns of path, label, part and group. Raises: DataError for a missing."""
        wanted = (self.path_column, self.label_column, self.split_column, self.group_column)
        for field, name in zip(("path", "label", "split", "group"), wanted, strict=True):
            if name is not None and name not in names:
                raise DataError(
                    f"{self.file} must have a column `{name}`, but has only"
                    f" {', '.join(map(shown, names))}{did_you_mean(name, names) or '.'}"
                    f" Set `{field}_column`."
                )
        split, group = (
            name or (usual if usual in names else None)
            for name, usual in zip(wanted[2:], ("split", "group"), strict=True)
        )
        return self.path_column, self.label_column, split, group


def _reader(lines: TextIO) -> "csv.DictReader[str]":
    head = lines.readline()
    return csv.DictReader(chain([head], lines), delimiter=max(",;\t", key=head.count), strict=True)


def columns_of(file: Path) -> Sequence[str]:
    """Returns the columns that a CSV file names. Raises: OSError, csv.Error."""
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        return _reader(lines).fieldnames or ()
