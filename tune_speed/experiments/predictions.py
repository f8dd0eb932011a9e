"""The classes of images in files, by a saved network: read and shown as evaluation showed them."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from unicodedata import normalize

import numpy as np
import torch
from numpy.typing import NDArray

from tune_speed.core.errors import ConfigError, DataError
from tune_speed.core.text import printable
from tune_speed.data import boxes
from tune_speed.data.base import shown
from tune_speed.data.datasets.image_folder import files_below, is_image
from tune_speed.training.saved_model import ModelFacts, SavedModel

BATCH = 64
MOST_THREADS = 8
"""That decode images, while the network works on the batch before."""


def labelled(places: Sequence[Path], class_names: Sequence[str]) -> list[tuple[Path, int]]:
    """Returns the images of folders and files, each with its class; -1: not known.

    The class of an image is that whose name its uppermost folder in `places` has.

    Raises: DataError if a place is missing or cannot be read, or no image is there.
    """
    number = {normalize("NFC", name): place for place, name in enumerate(class_names)}
    found: list[tuple[Path, int]] = []
    for place in places:
        try:
            os.stat(place)
            images = [*filter(is_image, files_below(place))] if place.is_dir() else [place]
        except OSError as error:
            raise DataError(f"{error.filename} cannot be read: {error.strerror}.") from error
        # File systems and archives differ in how they write an accent.
        names = (normalize("NFC", shown(os.path.relpath(image, place))) for image in images)
        classes = (number.get(name.partition(os.sep)[0], -1) for name in names)
        found += zip(images, classes, strict=True)
    if not found:
        suffixes = ", ".join(sorted(boxes.SUFFIXES))
        raise DataError(f"{', '.join(map(str, places))} must hold images ({suffixes}).")
    return found


def predictions(model: SavedModel, files: Sequence[Path]) -> Iterator[NDArray[np.float64] | str]:
    """Yields for each file the chance of each class, (K,), or what is wrong with the file.

    The chances are the softmax of the logits; where an image may be of several classes, sigmoids.
    """
    if model.facts.shape[2] not in (1, 3):
        must = "must take images of 1 or 3 channels, as files have"
        raise ConfigError.of("model", must, given=f"{model.facts.shape[2]} channels")
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as pool:

        def begin(start: int) -> list[Future[boxes.Pixels | str]]:
            some = files[start : start + BATCH]
            return [pool.submit(_read, model.facts, file) for file in some]

        following = begin(0)
        for start in range(0, len(files), BATCH):
            found = [each.result() for each in following]
            following = begin(start + BATCH)
            made = iter(_chances(model, [each for each in found if not isinstance(each, str)]))
            yield from (each if isinstance(each, str) else next(made) for each in found)


def _read(facts: ModelFacts, file: Path) -> boxes.Pixels | str:
    name, (*box, channels) = printable(shown(file)), facts.shape
    found = boxes.read(file, name, *facts.stored, channels)
    if isinstance(found, str) or facts.eval_size is not None or [*found.shape[:2]] == box:
        return found
    sizes = ("x".join(map(str, size[::-1])) for size in (box, found.shape[:2]))
    return f"{name} must be {' pixels, as the images of training, but is '.join(sizes)}"


def _chances(model: SavedModel, images: Sequence[boxes.Pixels]) -> NDArray[np.float64]:
    if not images:
        return np.zeros((0, len(model.facts.class_names)))
    sizes = np.array([image.shape[:2] for image in images], np.int64)
    pixels = np.zeros((len(images), *sizes.max(axis=0), model.facts.shape[2]), np.uint8)
    for box, image in zip(pixels, images, strict=True):
        box[: image.shape[0], : image.shape[1]] = image
    is_one_size = bool((sizes == sizes[0]).all())
    with torch.inference_mode():
        logits = model(model.windows(pixels, None if is_one_size else sizes)).double()
        chances = logits.sigmoid() if model.facts.are_several else logits.softmax(dim=1)
    made: NDArray[np.float64] = chances.cpu().numpy()
    return made


def columns_of(facts: ModelFacts, top: int) -> list[str]:
    """Returns `path`, `class`, `chance`, `class_2`, …; `classes` where images may have several."""
    suffixes = ["", *(f"_{place + 1}" for place in range(1, min(top, len(facts.class_names))))]
    named = [f"{name}{suffix}" for suffix in suffixes for name in ("class", "chance")]
    return ["path", *named, *["classes"] * facts.are_several]


def values_of(
    file: Path, chances: NDArray[np.float64], facts: ModelFacts, top: int
) -> Iterator[str | float]:
    """Yields the values of these columns; `classes` are those with a chance above 0.5."""
    names = [*map(printable, facts.class_names)]
    yield printable(shown(file))
    for number in np.argsort(-chances, kind="stable")[:top].tolist():
        yield names[number]
        yield round(float(chances[number]), 6)
    if facts.are_several:
        yield "|".join(names[number] for number in np.flatnonzero(chances > 0.5))
