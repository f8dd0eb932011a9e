"""Images in files of many each, which are of a part by their names; of these, tar shards."""

import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tune_speed.core.errors import DataError
from tune_speed.data.base import Encoded, EncodedData, EncodedPart, Labels, number_labels, shown
from tune_speed.data.datasets.decoding import SUFFIXES
from tune_speed.data.datasets.image_files import ImageFiles
from tune_speed.data.datasets.image_folder import PARTS, is_visible

BRACES = re.compile(r"(.*?)\{([^{}]*)\}(.*)", re.DOTALL)
LABEL_KINDS = ("cls", "json", "txt")
"""Extensions of labels in tar shards; of several, the first is read."""
MAX_IMAGE_BYTES = 1 << 28
MAX_LABEL_BYTES = 1 << 20


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


class TarShards(PartFiles):
    """Images in tar files, each next to a file of the same name that holds its label.

    `000017.jpg` has its label in `000017.cls` (a number or a name), else in `000017.json` or
    `000017.txt`. Shards are listed once a process, and read by offset, so that none is unpacked.
    Several shards are a folder, or a pattern as in `shards/{000000..000146}.tar`.

    Source: the convention of WebDataset (https://github.com/webdataset/webdataset).
    """

    suffixes: ClassVar[tuple[str, ...]] = (".tar",)

    label_key: str = Field(default="label", min_length=1)
    """Field of a `.json` that holds the label: a number, a name, or a list of either."""

    def images_of(self, path: Path) -> Iterator[Encoded]:
        shard = _indexed(path)
        with path.open("rb") as file:
            for name, (offset, size) in zip(shard.names, shard.places.tolist(), strict=True):
                file.seek(offset)
                yield Encoded(file.read(size), f"{shown(name)} in {path}")

    def labels_of(self, path: Path) -> Labels:
        shard = _indexed(path)

        def where(place: int) -> str:
            return f"{shown(shard.names[place])} in {path}"

        found = [self._label(text, where(place)) for place, text in enumerate(shard.labels)]
        return Labels.of(found, where)

    def _label(self, content: tuple[str, bytes], where: str) -> Any:
        kind, given = content
        try:
            text = given.decode().strip()
            label = json.loads(text)[self.label_key] if kind == "json" else text
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            form = f"JSON with `{self.label_key}`" if kind == "json" else "UTF-8"
            raise DataError(f"The label of {where} must be {form}, but: {error!r}.") from error
        values = label if isinstance(label, list) else [label]
        if not all(type(value) in (int, str) and value != "" for value in values):
            raise DataError(f"The label of {where} must be a number or a name, but is {label!r}.")
        is_number = isinstance(label, str) and label.isdecimal() and len(label) < 19
        return int(label) if is_number else label


class Shard(NamedTuple):
    """Where the images of a tar file are in it, and their labels."""

    names: list[str]
    places: NDArray[np.int64]
    """Offset and size [bytes] of each image, (N, 2)."""
    labels: list[tuple[str, bytes]]
    """Extension and content of each image's label."""


def _indexed(path: Path) -> Shard:
    status = path.stat()
    return _index(str(path), status.st_size, status.st_mtime_ns)


# Keyed by what tells one state of a file from another.
@cache
def _index(path: str, size: int, modified_ns: int) -> Shard:
    """Returns what a shard holds, in its order. Raises: DataError."""
    samples: dict[str, dict[str, tarfile.TarInfo]] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                place = PurePosixPath(member.name)
                stem, _, kind = place.name.partition(".")
                if member.isreg() and is_visible(place.name):
                    samples.setdefault(str(place.parent / stem), {})[kind.lower()] = member
        return _shard(path, size, samples)
    except (tarfile.TarError, OSError) as error:
        raise DataError(f"{path} must be an uncompressed tar file, but: {error}.") from error


def _shard(path: str, size: int, samples: dict[str, dict[str, tarfile.TarInfo]]) -> Shard:
    names, places, labels = list[str](), list[tuple[int, int]](), list[tuple[str, bytes]]()
    with open(path, "rb") as file:
        for name, members in samples.items():
            images = [kind for kind in members if f".{kind}" in SUFFIXES]
            kind = next((each for each in LABEL_KINDS if each in members), None)
            if not images:
                continue
            if len(images) > 1 or kind is None:
                raise DataError(
                    f"{shown(name)} in {path} must have one image and a label"
                    f" ({', '.join(LABEL_KINDS)}), but has {', '.join(members)}."
                )
            image, label = members[images[0]], members[kind]
            if image.offset_data + image.size > size:
                raise DataError(f"{path} must be whole, but ends before {shown(image.name)} does.")
            if image.size > MAX_IMAGE_BYTES or label.size > MAX_LABEL_BYTES:
                raise DataError(
                    f"An image must have at most {MAX_IMAGE_BYTES >> 20} MiB and its label"
                    f" {MAX_LABEL_BYTES >> 20}, but {shown(name)} in {path} has more."
                )
            file.seek(label.offset_data)
            names.append(image.name)
            places.append((image.offset_data, image.size))
            labels.append((kind, file.read(label.size)))
    if not names:
        raise DataError(f"{path} must hold images with labels, but holds none.")
    return Shard(names, np.array(places, np.int64), labels)
