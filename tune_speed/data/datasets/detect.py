"""What a stranger's folder or file holds, as the data set that reads it."""

import os
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tune_speed.core.errors import DataError
from tune_speed.data.base import DatasetConfig, Encoded, reading
from tune_speed.data.datasets import image_parquet
from tune_speed.data.datasets.decoding import size_of
from tune_speed.data.datasets.image_folder import PARTS, ImageFolder, is_visible
from tune_speed.data.datasets.image_parquet import ImageParquet, find_files, part_of, usable_columns

SIZES = (32, 48, 64, 96, 128, 160, 192, 224)
"""Sides to which larger images are scaled [pixels]."""
LOOKED_AT = 50
LABELS = ("label", "labels", "fine_label", "class", "target")


def detect(place: Path, *, most_pixels: int) -> DatasetConfig:
    """Returns the data set that reads the images at `place`, scaled where they are not all alike.

    A folder with one folder of images a class, perhaps below `train` and `test`; a Parquet file;
    or a folder of them, with `train`, `validation` or `test` among the words of a file's or a
    folder's name. The side is at most `most_pixels`.

    Raises: DataError if there is nothing of the kind.
    """
    shown = os.fsencode(place).decode(errors="backslashreplace")
    if shown != str(place):
        raise DataError(f"{shown} must have a name in UTF-8, as study files have. Rename it.")
    if place.is_file():
        return _parquet({"train": place}, most_pixels)
    inside = (path.relative_to(place) for path in sorted(place.rglob("*.parquet")))
    files = [path for path in inside if all(map(is_visible, path.parts))]
    if not files:
        folder = ImageFolder(root=str(place), image_size=1)
        with reading(folder):
            paths = folder.sources()
        spread = paths[:: -(-len(paths) // LOOKED_AT)]
        size, _ = _side((Encoded(path, str(path)) for path in spread), most_pixels)
        return folder.model_copy(update={"image_size": size})
    parts: dict[str | None, list[Path]] = {}
    for path in files:
        part = next(filter(None, map(part_of, reversed(path.parts))), None)
        parts.setdefault(part, []).append(place / path)
    if None in parts and "train" in parts:
        raise DataError(
            f"{parts[None][0]} must be of a part by its name ({', '.join(PARTS)}), as"
            f" {parts['train'][0]} is. Rename it, or move it elsewhere."
        )
    named = {part or "train": _part(files, place) for part, files in parts.items()}
    if "train" not in named:
        raise DataError(f"{place} must hold Parquet files to train on, but holds {files[0]} alone.")
    if "test" not in named and "validation" in named:
        named["test"] = named.pop("validation")
    return _parquet(named, most_pixels)


def _part(files: Sequence[Path], place: Path) -> Path:
    folders = {path.parent for path in files}
    if len(files) == 1:
        return files[0]
    if len(folders) == 1 and sorted(next(iter(folders)).glob("*.parquet")) == list(files):
        return folders.pop()
    raise DataError(
        f"The Parquet files of a part must lie in a folder of their own, but those in {place} do"
        " not. Put them into folders `train` and `test`, or name one file or folder."
    )


def _parquet(parts: dict[str, Path], most_pixels: int) -> ImageParquet:
    first = find_files("train", str(parts["train"]))[0]
    images, labels, columns = usable_columns(first)
    if not images or not labels:
        missing = "encoded images" if not images else "integers, the labels"
        have = f"has only {', '.join(columns)}. {'' if labels else image_parquet.NUMBER_THEM}"
        raise DataError(f"{first} must have a column of {missing}, but {have.rstrip()}")
    label = next((name for name in LABELS if name in labels), labels[0])
    encoded = image_parquet.read_images(first, images[0])
    size, is_theirs = _side(islice(encoded, LOOKED_AT), most_pixels)
    places: dict[str, Any] = {part: str(place) for part, place in parts.items()}
    return ImageParquet(
        **places,
        image_column=images[0],
        label_column=label,
        image_size=None if is_theirs else size,
    )


def _side(images: Iterable[Encoded], most_pixels: int) -> tuple[int, bool]:
    """Returns the side to scale to, and whether all are squares of that side already."""
    sizes = [size_of(image) for image in images]
    sides = sorted(min(size) for size in sizes)
    median = sides[len(sides) // 2] if sides else most_pixels
    if set(sizes) == {(median, median)} and median <= most_pixels:
        return median, True
    most = min(median, most_pixels)
    return max((s for s in SIZES if s <= most), default=most), False
