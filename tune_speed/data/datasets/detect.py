"""What a stranger's folder or file holds, as the data set that reads it."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tune_speed.core.errors import DataError
from tune_speed.core.text import counted, printable
from tune_speed.data.base import DatasetConfig, class_counts, main_classes, reading, shown
from tune_speed.data.cache import PreparedData
from tune_speed.data.datasets.arrays import Arrays
from tune_speed.data.datasets.decoding import STORED_MARGIN, ImageFiles, size_of
from tune_speed.data.datasets.image_folder import PARTS, ImageFolder, ImageTable, rows_of
from tune_speed.data.datasets.image_parquet import ImageParquet, usable_columns
from tune_speed.data.datasets.shards import TarShards, find_files, parts_by_name

SIZES = (32, 48, 64, 96)
"""Sides to which larger images are scaled [pixels]."""
LARGEST_ICON = 96
"""Above it, images are photographs, which keep their aspect ratio [pixels]."""
LEAST_PHOTOGRAPH = 64
"""Side at which they are shown to a network at least [pixels]."""
LOOKED_AT = 50
UNBALANCED = 10
"""Images of the largest class over those of the smallest from which weights of classes may help."""
LABELS = ("label", "labels", "fine_label", "class", "target", "cls")
PATHS = ("path", "file", "filename", "file_name", "image", "img", "image_path", "filepath")
"""Usual names of columns, in lower case."""


def detect(place: Path, *, most_pixels: int) -> DatasetConfig:
    """Returns the data set that reads the images at `place`.

    A folder with one folder of images a class, perhaps below `train`, `validation` and `test`; a
    Parquet or Arrow file, tar shards, or a folder of either, with the part among the words of a
    file's or a folder's name; a CSV file, or the folder that it is in; or `images.npy` next to
    `labels.npy`. Small squares of one size are scaled to `most_pixels` at most; all others are
    stored large enough to be shown at that size, or at 64 pixels if that is larger.

    Raises: DataError if there is nothing of the kind.
    """
    if shown(place) != str(place):
        raise DataError(f"{shown(place)} must have a name in UTF-8, as study files. Rename it.")
    if place.is_file() and place.suffix.lower() in (".csv", ".tsv"):
        return _scaled(_table(place), most_pixels)
    if place.suffix == ".npy" or (place / "images.npy").is_file():
        folder = place if place.is_dir() else place.parent
        files = {name: folder / f"{name}.npy" for name in sorted(Arrays.location_fields)}
        given: dict[str, Any] = {name: str(f) for name, f in files.items() if f.is_file()}
        if not {"images", "labels"} <= given.keys():
            raise DataError(f"{folder} must hold images.npy and labels.npy, but holds one alone.")
        return Arrays(**given)
    if parts := _parts(place, ImageParquet.suffixes):
        return _parquet(parts, most_pixels)
    if parts := _parts(place, TarShards.suffixes):
        return _scaled(TarShards(**parts), most_pixels)
    if place.is_file():
        return _parquet({"train": str(place)}, most_pixels)
    tables = [table for table in map(_listing_of, sorted(place.glob("*.[ct]sv"))) if table]
    if len(tables) == 1:
        return _scaled(tables[0], most_pixels)
    return _scaled(ImageFolder(root=str(place)), most_pixels)


def _table(file: Path) -> ImageTable:
    _, columns = next(rows_of(file), ("", []))
    known = {name.lower(): name for name in reversed(columns)}
    path, label = (
        next((known[name] for name in usual if name in known), None) for usual in (PATHS, LABELS)
    )
    if path is None or label is None:
        missing, usual = ("files", PATHS) if path is None else ("labels", LABELS)
        raise DataError(
            f"{file} must have a column of {missing}, called {', '.join(usual)}, but has only"
            f" {', '.join(columns)}. Rename one."
        )
    return ImageTable(file=str(file), path_column=path, label_column=label)


def _listing_of(file: Path) -> ImageTable | None:
    """Returns the data set of a CSV file in a folder; None if it lists no images that are there."""
    try:
        table = _table(file)
        return table if table.sources()[1:] and table.sources()[1].is_file() else None
    except (DataError, OSError):
        return None


def _parts(place: Path, suffixes: Sequence[str]) -> dict[str, Any]:
    """Returns where the files of each part are. Raises: DataError if one is of no part."""
    if place.is_file():
        return {"train": str(place)} if place.suffix in suffixes else {}
    parts: dict[str | None, list[Path]] = {}
    for path, part in parts_by_name(place, suffixes).items():
        parts.setdefault(part, []).append(path)
    first = {part: files[0] for part, files in parts.items()}
    if None in parts and "train" in parts:
        raise DataError(
            f"{first[None]} must be of a part by its name ({', '.join(PARTS)}), as {first['train']}"
            " is. Rename it, or move it elsewhere."
        )
    named: dict[str, Any] = {}
    for part, files in parts.items():
        folder = files[0].parent
        # A part's own folder, if it holds no other files.
        whole = folder if sorted(folder.rglob(f"*{files[0].suffix}")) == files else place
        named[part or "train"] = str(whole if files[1:] else files[0])
    if parts and "train" not in named:
        names = ", ".join(path.name for path in first.values())
        raise DataError(f"{place} must hold files to train on, but holds {names} alone.")
    return named


def _parquet(parts: dict[str, Any], most_pixels: int) -> ImageParquet:
    first = find_files("train", parts["train"], ImageParquet.suffixes)[0]
    images, labels, columns = usable_columns(first)
    if not images or not labels:
        missing = "encoded images" if not images else "integers or texts, the labels"
        raise DataError(f"{first} must have a column of {missing}, but has {', '.join(columns)}.")
    label = next((name for name in LABELS if name in labels), labels[0])
    dataset = ImageParquet(**parts, image_column=images[0], label_column=label)
    sizes = {size_of(image) for image in islice(dataset.images_of(first), LOOKED_AT)}
    found = _sizes(sizes, most_pixels)
    side = found.get("image_size")
    return dataset.model_copy(update={} if {(side, side)} == sizes else found)


def _scaled(dataset: ImageFiles, most_pixels: int) -> ImageFiles:
    return dataset.model_copy(update=_sizes(set(_some_sizes(dataset)), most_pixels))


def _some_sizes(dataset: ImageFiles) -> list[tuple[int, int]]:
    with reading(dataset):
        train = dataset.listing().train
        step = -(-len(train.labels) // LOOKED_AT)
        return [size_of(image) for image in islice(train.images(), 0, None, step or 1)]


def described(dataset: DatasetConfig, prepared: PreparedData) -> Iterator[str]:
    """Yields lines on the sizes, the balance and the copies of photographs; none without these.

    Copies are alike pixel by pixel, as they are stored. Raises: DataError if a file has changed.
    """
    if not isinstance(dataset, ImageFiles) or dataset.store_size is None:
        return
    low, half, high = np.quantile([min(each) for each in _some_sizes(dataset)], [0, 0.5, 1])
    yield f"images: none damaged; shorter sides {low:.0f} to {high:.0f} pixels, median {half:.0f}"
    counts = class_counts(prepared.train.labels, len(prepared.class_names))
    ends = (int(counts.argmin()), int(counts.argmax()))
    least, most = (f"{counts[i]:,} ({printable(prepared.class_names[i])})" for i in ends)
    is_uneven = counts.max() > UNBALANCED * counts.min()
    hint = "; `class_weights: [none, balanced]` lets a search weigh them" if is_uneven else ""
    yield f"balance: {least} to {most} training and validation images a class{hint}"
    parts = [prepared.train, *([prepared.test] if prepared.test else [])]
    labels = np.concatenate([main_classes(part.labels) for part in parts])
    digests = np.concatenate(prepared.digests)
    _, first, number = np.unique(digests, return_index=True, return_inverse=True)
    contradicted = int((labels != labels[first][number]).sum())
    others = f", {contradicted:,} of them in another class" if contradicted else ""
    yield f"repeated: {len(labels) - len(first):,} of {counted(len(labels), 'image')}{others}"


def _sizes(sizes: set[tuple[int, int]], most_pixels: int) -> dict[str, int]:
    sides = {side for size in sizes for side in size}
    if len(sides) != 1 or max(sides) > LARGEST_ICON:
        shown_at = min(max(LEAST_PHOTOGRAPH, most_pixels), max(map(min, sizes), default=1))
        return {"store_size": max(8, math.ceil(STORED_MARGIN * shown_at))}
    usual = max((size for size in SIZES if size <= most_pixels), default=most_pixels)
    return {"image_size": max(sides) if max(sides) <= most_pixels else usual}
