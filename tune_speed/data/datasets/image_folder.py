"""Images in files of their own: in one folder a class, or listed by a CSV file."""

import csv
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from PIL import Image
from pydantic import Field

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import DataError
from tune_speed.core.text import counted
from tune_speed.data import base
from tune_speed.data.datasets.decoding import FORMATS, SUFFIXES, ImageFiles

ORDER = ("train", "validation", "test")
SETTLED_NS = 2 * 10**9
MOST_FOLDERS = 10_000
"""Whose names are remembered."""
ClassFiles = dict[str, list[Path]]
"""Image files by class folder, both in name order."""


class ImageFolder(ImageFiles):
    """Image files in `root/train/<class>/`, `root/validation/<class>/` and `root/test/<class>/`.

    Parts are known by their usual names in any letter case, and are used as given: a search is
    judged on the validation part, certified results on the test part. What is not there is set
    aside from the training images. Where there are no parts, the classes are the folders of `root`,
    or of the only folder in it. Classes are numbered in name order; hidden files and those of
    systems are passed over, links followed.
    """

    location_fields: ClassVar[frozenset[str]] = frozenset({"root"})

    root: str
    """Folder that holds `train`, or the class folders themselves."""

    def sources(self) -> list[Path]:
        return [path for of in self._found().values() for files in of.values() for path in files]

    def notes(self) -> Iterator[str]:
        place, parts = parts_in(Path(self.root))
        if place != Path(self.root):
            yield f"classes are looked for in {place}"
        tops = [*parts.values()] or [place]
        beside = [path for top in {place, *tops} for path in inside(top) if is_image(path)]
        below = [path for top in tops for each in folders_in(top) for path in files_below(each)]
        others = [path for path in below if not is_image(path)]
        for files, where in ((beside, " beside class folders"), (others, "")):
            kinds = Counter(path.suffix.lower() or "no suffix" for path in files).most_common(4)
            named = ", ".join(f"{count:,} {kind}" for kind, count in kinds)
            if files:
                number = counted(len(files), "file")
                yield f"not read{where}: {number} ({named}), such as {min(files)}"

    def listing(self) -> base.EncodedData:
        found = self._found()
        number = {name: place for place, name in enumerate(found["train"])}
        files = [_listed(part, number, classes) for part, classes in found.items()]
        return base.encoded_data(self.root, files, tuple(number))

    def _found(self) -> dict[str, ClassFiles]:
        root = Path(self.root)
        if not root.is_dir():
            raise DataError(
                f"`root` must be a folder with one folder of images a class, but there is no"
                f" {root.absolute()}. Set `root` to where the data are; relative paths start at the"
                " study file's folder."
            )
        place, parts = parts_in(root)
        _refuse_strange(place, parts)
        found: dict[str, ClassFiles] = {}
        for part, folder in {"train": place, **parts}.items():
            classes = {f.name: [*filter(is_image, files_below(f))] for f in folders_in(folder)}
            found[part] = _checked(folder.absolute(), classes, found.get("train"))
        return found


def listed_once(of: Callable[[Path], list[Path]]) -> Callable[[Path], list[Path]]:
    """Remembers what `of` finds in a folder until the folder's time of change is another one."""

    @lru_cache(MOST_FOLDERS)
    def names(folder: Path, number: int, changed_ns: int) -> tuple[str, ...]:
        return tuple(path.name for path in of(folder))

    def listed(folder: Path) -> list[Path]:
        status = folder.stat()
        # Within a tick of the file system's clock, another file may come at the same time.
        if time.time_ns() - status.st_mtime_ns < SETTLED_NS:
            return of(folder)
        return [folder / name for name in names(folder, status.st_ino, status.st_mtime_ns)]

    return listed


# From here to the next private function, exported scripts have the same text but for decorators.
PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval"), "test"),
}
"""Parts of a data set by the names of folders and files, in lower case."""
SYSTEM_NAMES = ("@eadir", "#recycle", "$recycle.bin", "__macosx", "lost+found", "thumbs.db")
"""What systems leave in people's folders, in lower case."""


def parts_in(root: Path) -> tuple[Path, dict[str, Path]]:
    """Returns the folder that holds parts or class folders, and the parts; none for the latter."""
    folders = folders_in(root)
    named = {PARTS.get(each.name.lower()): each for each in reversed(folders) if folders_in(each)}
    order = ("train", "validation", "test")
    parts: dict[str, Path] = {part: named[part] for part in order if part in named}
    if len(folders) == 1 and [*named] == [None] and not any(map(is_image, inside(folders[0]))):
        return parts_in(folders[0])
    return root, parts


@listed_once
def inside(folder: Path) -> list[Path]:
    """Returns what is visible in a folder, in name order."""
    return sorted(each for each in folder.iterdir() if is_visible(each.name))


def folders_in(folder: Path) -> list[Path]:
    """Returns the visible folders in a folder in name order, without links to those above."""
    above = (folder.resolve(), *folder.resolve().parents)
    return [each for each in inside(folder) if each.is_dir() and each.resolve() not in above]


def files_below(folder: Path) -> list[Path]:
    """Returns the files below a folder in name order, behind links too, each folder once."""
    seen = {each.resolve() for each in (folder, *folder.absolute().parents)}
    found: list[Path] = []
    waiting = [folder]
    while waiting:
        for path in inside(waiting.pop()):
            if not path.is_dir():
                found.append(path)
            elif path.resolve() not in seen:
                seen.add(path.resolve())
                waiting.append(path)
    return sorted(found)


def is_visible(name: str) -> bool:
    """Returns whether a file or folder is neither hidden nor left by a system."""
    return not name.startswith(".") and name.lower() not in SYSTEM_NAMES


def is_image(path: Path) -> bool:
    """Returns whether a file is read: by its suffix, or without one by what it holds."""
    if path.suffix or not is_visible(path.name):
        return path.suffix.lower() in SUFFIXES and is_visible(path.name) and path.is_file()
    try:
        with Image.open(path, formats=FORMATS):
            return True
    except (OSError, ValueError, Image.DecompressionBombError):
        return False


def _refuse_strange(place: Path, parts: dict[str, Path]) -> None:
    """Raises: DataError for images beside the parts, and for parts without `train`."""
    others = [each for each in folders_in(place) if parts and each not in parts.values()]
    strange = ", ".join(each.name for each in others if any(map(is_image, files_below(each))))
    if strange or (parts and "train" not in parts):
        why = f"beside {strange}, not of a part or without class folders" if strange else "alone"
        raise DataError(
            f"{place.absolute()} must hold class folders alone, or one folder of class folders a"
            f" part ({', '.join(PARTS)}), but holds {', '.join(f.name for f in parts.values())}"
            f" {why}. Rename or move some."
        )


def _checked(folder: Path, classes: ClassFiles, train: ClassFiles | None) -> ClassFiles:
    if strange := [name for name in classes if train is not None and name not in train]:
        raise DataError(
            f"The classes of {folder} must be those of the training part, but `{strange[0]}` is"
            f" none of them{did_you_mean(strange[0], train or ()) or '.'}"
        )
    empty = [folder / name for name, files in classes.items() if not files]
    if (empty and train is None) or not any(classes.values()):
        raise DataError(
            f"{folder} must hold one folder of images a class ({', '.join(sorted(SUFFIXES))}), but"
            f" {empty[0] if empty else folder} holds none. Add some, or remove the folder."
        )
    return classes


def _listed(part: str, number: Mapping[str, int], classes: ClassFiles) -> base.Listed:
    paths = [*chain.from_iterable(classes.values())]
    counts = [len(files) for files in classes.values()]
    labels = np.repeat(np.array([number[name] for name in classes], np.int64), counts)

    def images() -> Iterator[base.Encoded]:
        return (base.Encoded(path, base.shown(path)) for path in paths)

    return base.Listed(
        part, images, base.Labels(labels, None, len(paths), lambda row: base.shown(paths[row]))
    )


class _Row(NamedTuple):
    where: str
    path: Path
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
    """Column of the part that an image belongs to: `train`, `validation` or `test`; empty means
    `train`; null: `split`, if there is one. Parts that are not there are set aside from `train`."""
    group_column: str | None = None
    """Column of what must stay in one part, as a patient or a video; null: `group`, if there is
    one."""
    label_separator: str = Field(default="|", min_length=1)
    """What is between the labels of an image that is of several classes. If it is in any row,
    images may be of several classes or of none."""

    def sources(self) -> list[Path]:
        rows = chain.from_iterable(self._rows().values())
        return [Path(self.file), *dict.fromkeys(row.path for row in rows)]

    def listing(self) -> base.EncodedData:
        parts = self._rows()
        if not parts["train"]:
            raise DataError(f"{self.file} must list images of the training part, but lists none.")
        rows = [*chain.from_iterable(parts.values())]
        several = any(self.label_separator in row.label for row in rows)
        if not several and (bare := next((row.where for row in rows if not row.label), None)):
            raise DataError(f"Every image must have a label, but {bare} has none.")
        files = [self._listed(part, own, several) for part, own in parts.items() if own]
        names = [row.group for row in rows[: len(rows) - len(parts["test"])]]
        groups = None if None in names else base.number_groups(names)
        return base.encoded_data(self.file, files, groups=groups)

    def _listed(self, part: str, rows: Sequence[_Row], several: bool) -> base.Listed:
        def images() -> Iterator[base.Encoded]:
            return (base.Encoded(row.path, f"{base.shown(row.path)} ({row.where})") for row in rows)

        given: list[Any] = [row.label for row in rows]
        if several:
            lists = (map(str.strip, label.split(self.label_separator)) for label in given)
            given = [[*filter(None, each)] for each in lists]
        return base.Listed(part, images, base.Labels.of(given, lambda place: rows[place].where))

    def _rows(self) -> dict[str, list[_Row]]:
        file = Path(self.file)
        if not file.is_file():
            raise DataError(
                f"`file` must be a CSV file, but there is no {file.absolute()}. Relative paths"
                " start at the study file's folder."
            )
        parts: dict[str, list[_Row]] = {part: [] for part in ORDER}
        part_of_group: dict[str, str] = {}
        lines = rows_of(file)
        _, names = next(lines, ("", []))
        columns = self._columns(names)
        for where, fields in lines:
            row = dict(zip(names, fields, strict=False))
            values = [row.get(name) if name else "" for name in columns]
            if None in values or not values[0]:
                raise DataError(f"{where} must have {', '.join(filter(None, columns))}.")
            path, label, split, group = (str(value).strip() for value in values)
            part = PARTS.get(split.lower() or "train")
            if part is None:
                must = f"`{columns[2]}` must be one of {', '.join(parts)}"
                raise DataError(f"{must}, but is {split!r} in {where}.")
            if columns[3] and part_of_group.setdefault(group, part) != part:
                both = f"{part} and {part_of_group[group]}"
                raise DataError(
                    f"No group may be in two parts, but that of {where}, {group!r}, is in {both}."
                )
            own = group if columns[3] else None
            parts[part].append(_Row(where, file.parent / path, label, own))
        return parts

    def _columns(self, names: Sequence[str]) -> list[str | None]:
        columns: list[str | None] = []
        for usual in ("path", "label", "split", "group"):
            name = getattr(self, f"{usual}_column")
            columns.append(name or (usual if usual in names else None))
            if name is not None:
                check_column(self.file, name, names, field=f"{usual}_column")
        return columns


def rows_of(file: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields how to call a row of a CSV file, and its fields; the names of columns come first.

    Raises: DataError that names the line; OSError.
    """
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
        head = lines.readline()
        delimiter = max(",;\t", key=head.count)
        reader = csv.reader(chain([head], lines), delimiter=delimiter, strict=True)
        try:
            yield from ((f"line {reader.line_num} of {file}", row) for row in reader if row)
        except csv.Error as error:
            raise DataError(f"line {reader.line_num} of {file} must be CSV: {error}.") from error


def check_column(file: str | Path, name: str, names: Sequence[str], *, field: str) -> None:
    """Raises: DataError if a file has no column of a name, which `field` of the data set says."""
    if name not in names:
        raise DataError(
            f"{file} must have a column `{name}`, but has only {', '.join(map(base.shown, names))}"
            f"{did_you_mean(name, names) or '.'} Set `{field}`."
        )
