"""Images in files of many each, which are of a part by their names; of these, tar shards."""

import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, ClassVar, NamedTuple

from pydantic import Field

from tune_speed.core.config import left_out
from tune_speed.core.errors import DataError
from tune_speed.data.base import Encoded, EncodedData, Labels, Listed, encoded_data, shown
from tune_speed.data.datasets.decoding import SUFFIXES, ImageFiles
from tune_speed.data.datasets.image_folder import ORDER, PARTS, is_visible

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
    validation: str | None = left_out(None)
    """File or folder of the validation part; None: a part of the training images is set aside."""
    test: str | None = None
    """File or folder of the test part; None: a part of the training images is set aside."""

    def files(self, *parts: str) -> list[Path]:
        """Returns the files of parts, one part after the other. Raises: DataError."""
        places = [(part, getattr(self, part)) for part in parts]
        named = [(p, each) for p, place in places if place is not None for each in _expanded(place)]
        return [path for part, place in named for path in find_files(part, place, self.suffixes)]

    def sources(self) -> list[Path]:
        return self.files(*ORDER)

    def labels_of(self, path: Path) -> Labels:
        """Returns the labels of a file. Raises: DataError."""
        raise NotImplementedError

    def images_of(self, path: Path) -> Iterator[Encoded]:
        """Yields the images of a file. Raises: DataError."""
        raise NotImplementedError

    def names_in(self, path: Path) -> tuple[str, ...] | None:
        """Returns the names of the classes that a file says; None: it says none."""

    def listing(self) -> EncodedData:
        parts = [(part, path) for part in ORDER for path in self.files(part)]
        files = [
            Listed(p, partial(self.images_of, path), self.labels_of(path)) for p, path in parts
        ]
        first = parts[0][1]
        name = first if len(parts) == 1 else first.parent
        return encoded_data(str(name), files, self.names_in(first))


def find_files(field: str, place: str, suffixes: Sequence[str]) -> list[Path]:
    """Returns the file `place`, or the files of a folder and of those in it, in name order.

    Of a folder of several parts, by the names of files and folders in it, those of the part `field`
    are returned, which is the configuration's that named the place.

    Raises: DataError if there is none, or no name says which part a file belongs to.
    """
    path = Path(place)
    if path.is_file():
        return [path]
    part_of_file = parts_by_name(path, suffixes)
    one_of = {part: each.name for each, part in part_of_file.items()}
    if len(one_of) > 1 and (None in one_of or field not in one_of):
        raise DataError(
            f"`{field}` must be the files of one part, but {path.absolute()} holds several:"
            f" {', '.join(sorted(one_of.values()))}. Put them into a folder a part, or name one"
            " file."
        )
    if part_of_file:
        return [e for e, part in part_of_file.items() if len(one_of) == 1 or part == field]
    kinds = " or ".join(f"*{suffix}" for suffix in suffixes)
    found_there = f"holds no {kinds} files" if path.is_dir() else "does not exist"
    raise DataError(
        f"`{field}` must be a file ({kinds}) or a folder of them, but {path.absolute()}"
        f" {found_there}. Set `{field}` to where the data are; relative paths start at the study"
        " file's folder."
    )


def parts_by_name(folder: Path, suffixes: Sequence[str]) -> dict[Path, str | None]:
    """Returns the files below a folder that have the first suffix that any has, in name order.

    With the part that a word of a file's name says, or else of a folder's above it; None: none.
    """
    for suffix in suffixes:
        found: dict[Path, str | None] = {}
        for path in sorted(folder.rglob(f"*{suffix}")):
            names = path.relative_to(folder).parts
            words = (w for name in reversed(names) for w in re.split("[^a-z]+", name.lower()))
            # `datasets` leaves caches of what was computed next to what was saved.
            if all(map(is_visible, names)) and not path.name.startswith("cache-"):
                found[path] = next((PARTS[word] for word in words if word in PARTS), None)
        if found:
            return found
    return {}


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


class Sample(NamedTuple):
    """An image in a tar file, and its label."""

    name: str
    offset: int
    """Where the image starts [bytes]."""
    size: int
    """Of the image [bytes]."""
    label_kind: str
    """Extension of the label's file."""
    label: bytes


KNOWN: dict[tuple[Path, int, int], list[Sample]] = {}
"""What shards hold, by path, size [bytes] and time of change [ns]: each is listed once."""


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
        with path.open("rb") as file:
            for sample in _samples(path):
                file.seek(sample.offset)
                yield Encoded(file.read(sample.size), f"{sample.name} in {path}")

    def labels_of(self, path: Path) -> Labels:
        samples = _samples(path)
        found = [self._label(sample, path) for sample in samples]
        return Labels.of(found, lambda place: f"{samples[place].name} in {path}")

    def _label(self, sample: Sample, path: Path) -> Any:
        where = f"{sample.name} in {path}"
        is_json = sample.label_kind == "json"
        try:
            text = sample.label.decode().strip()
            label = json.loads(text)[self.label_key] if is_json else text
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            form = f"JSON with `{self.label_key}`" if is_json else "UTF-8"
            raise DataError(f"The label of {where} must be {form}, but: {error!r}.") from error
        values = label if isinstance(label, list) else [label]
        if not all(type(value) in (int, str) and value != "" for value in values):
            raise DataError(f"The label of {where} must be a number or a name, but is {label!r}.")
        is_number = isinstance(label, str) and label.isdecimal() and len(label) < 19
        return int(label) if is_number else label


def _samples(path: Path) -> list[Sample]:
    status = path.stat()
    # What tells one state of a file from another.
    state = (path, status.st_size, status.st_mtime_ns)
    if state in KNOWN:
        return KNOWN[state]
    samples: dict[str, dict[str, tarfile.TarInfo]] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                place = PurePosixPath(member.name)
                stem, _, kind = place.name.partition(".")
                if member.isreg() and is_visible(place.name):
                    samples.setdefault(str(place.parent / stem), {})[kind.lower()] = member
        with path.open("rb") as file:
            every = [_sample(shown(n), file, status.st_size, of) for n, of in samples.items()]
    except (tarfile.TarError, OSError) as error:
        raise DataError(f"{path} must be an uncompressed tar file, but: {error}.") from error
    if not (found := [sample for sample in every if sample is not None]):
        raise DataError(f"{path} must hold images with labels, but holds none.")
    return KNOWN.setdefault(state, found)


def _sample(
    name: str, file: BinaryIO, size: int, members: dict[str, tarfile.TarInfo]
) -> Sample | None:
    images = [kind for kind in members if f".{kind}" in SUFFIXES]
    kind = next((each for each in LABEL_KINDS if each in members), None)
    if not images:
        return None
    if len(images) > 1 or kind is None:
        raise DataError(
            f"{name} in {file.name} must have one image and a label ({', '.join(LABEL_KINDS)}), but"
            f" has {', '.join(members)}."
        )
    image, label = members[images[0]], members[kind]
    if image.offset_data + image.size > size:
        raise DataError(f"{file.name} must be whole, but ends before {shown(image.name)} does.")
    if image.size > MAX_IMAGE_BYTES or label.size > MAX_LABEL_BYTES:
        raise DataError(
            f"An image must have at most {MAX_IMAGE_BYTES >> 20} MiB and its label"
            f" {MAX_LABEL_BYTES >> 20}, but {name} in {file.name} has more."
        )
    file.seek(label.offset_data)
    content = file.read(label.size)
    return Sample(shown(image.name), image.offset_data, image.size, kind, content)
