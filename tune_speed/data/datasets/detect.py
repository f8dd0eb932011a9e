"""What a stranger's folder or file holds, as the data set that reads it."""

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from tune_speed.core.errors import DataError
from tune_speed.data.base import DatasetConfig
from tune_speed.data.datasets.decoding import Encoded, decode_image
from tune_speed.data.datasets.image_folder import ImageFolder
from tune_speed.data.datasets.image_parquet import ImageParquet, read_images, usable_columns

SIZES = (32, 48, 64, 96, 128, 160, 192, 224)
"""Sides to which larger images are scaled [pixels]."""
LOOKED_AT = 50
"""Images whose sizes are looked at."""
LABELS = ("label", "labels", "fine_label", "class", "target")
TEST_NAMES = ("test", "val")


def detect(place: Path, *, most_pixels: int) -> DatasetConfig:
    """Returns the data set that reads the images at `place`, scaled where they are not all alike.

    A folder with one folder of images a class, perhaps below `train` and `test`; a Parquet file;
    or a folder of them, with `train` or `test` at the beginning of a file's or a folder's name.
    The side is at most `most_pixels`.

    Raises: DataError if there is nothing of the kind.
    """
    if place.is_file():
        return _parquet(place, None, most_pixels)
    files = sorted(place.rglob("*.parquet"))
    if not files:
        folder = ImageFolder(root=str(place), image_size=1)
        paths = folder.sources()
        spread = paths[:: -(-len(paths) // LOOKED_AT)]
        size, _ = _side((Encoded(path, str(path)) for path in spread), most_pixels)
        return folder.model_copy(update={"image_size": size})
    test = [path for path in files if _is_test(path.relative_to(place))]
    train = [path for path in files if path not in test]
    return _parquet(_part(train, place), _part(test, place) if test else None, most_pixels)


def _is_test(path: Path) -> bool:
    return any(name.lower().startswith(TEST_NAMES) for name in path.parts)


def _part(files: Sequence[Path], place: Path) -> Path:
    """Returns the file, or the folder that has these files and no others."""
    folders = {path.parent for path in files}
    if len(files) == 1:
        return files[0]
    if len(folders) == 1 and sorted(next(iter(folders)).glob("*.parquet")) == list(files):
        return folders.pop()
    raise DataError(
        f"The Parquet files of a part must lie in a folder of their own, but those in {place} do"
        " not. Put them into folders `train` and `test`, or name one file or folder."
    )


def _parquet(train: Path, test: Path | None, most_pixels: int) -> ImageParquet:
    first = train if train.is_file() else sorted(train.glob("*.parquet"))[0]
    images, labels = usable_columns(first)
    if not images or not labels:
        missing = "encoded images" if not images else "integers, the labels"
        raise DataError(f"{first} must have a column of {missing}, but has none.")
    label = next((name for name in LABELS if name in labels), labels[0])
    size, is_theirs = _side(islice(read_images(first, images[0]), LOOKED_AT), most_pixels)
    return ImageParquet(
        train=str(train),
        test=None if test is None else str(test),
        image_column=images[0],
        label_column=label,
        image_size=None if is_theirs else size,
    )


def _side(images: Iterable[Encoded], most_pixels: int) -> tuple[int, bool]:
    """Returns the side to scale to, and whether all are squares of that side already."""
    sizes = [decode_image(image, None)[0].shape[:2] for image in images]
    sides = sorted(min(size) for size in sizes)
    median = sides[len(sides) // 2] if sides else most_pixels
    if set(sizes) == {(median, median)} and median <= most_pixels:
        return median, True
    most = min(median, most_pixels)
    return max((s for s in SIZES if s <= most), default=most), False
