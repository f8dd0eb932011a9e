"""Images in tar shards, in WebDataset's convention."""

import json
import tarfile
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tune_speed.core.errors import DataError
from tune_speed.data.base import Encoded
from tune_speed.data.datasets.decoding import SUFFIXES
from tune_speed.data.datasets.image_folder import is_visible, shown
from tune_speed.data.datasets.image_parquet import MAX_IMAGE_BYTES, PartFiles
from tune_speed.data.datasets.image_table import Labels

LABEL_KINDS = ("cls", "json", "txt")
"""Extensions of labels; of several, the first is read."""
MAX_LABEL_BYTES = 1 << 20


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
        several = any(isinstance(label, list) for label in found)
        of = [label if isinstance(label, list) else [label] for label in found]
        values = [*chain.from_iterable(of)]
        rows = np.repeat(np.arange(len(of)), [*map(len, of)]) if several else None
        are_numbers = all(isinstance(value, int) for value in values)
        kind: Any = np.int64 if are_numbers else object
        texts = values if are_numbers else [*map(str, values)]
        return Labels(np.array(texts, kind), rows, len(of), where)

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
        return (
            int(label)
            if isinstance(label, str) and label.isdecimal() and len(label) < 19
            else label
        )


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
