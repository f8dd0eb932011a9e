"""Images in one folder a class."""

from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import DataError
from tune_speed.data.base import DatasetConfig, DecodedData, Images, OnProgress
from tune_speed.data.datasets.decoding import Encoded, Part, decode_parts

SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
)
TEST_FOLDERS = ("test", "val")

ClassFiles = dict[str, list[Path]]
"""Image files by class name, both in name order."""


class ImageFolder(DatasetConfig):
    """Image files in `root/train/<class>/`, with `root/test/` or else `root/val/` as test part.

    Where there is no `root/train`, the classes are the folders of `root` itself, and a part of the
    images is set aside for tests. Classes are numbered in name order; names that begin with a dot
    are passed over.
    """

    location_fields: ClassVar[frozenset[str]] = frozenset({"root"})

    root: str
    """Folder that holds `train`, or the class folders themselves."""
    image_size: int = Field(ge=1)
    """Height and width [pixels]: the shorter side is scaled to it and the centre cropped."""

    def num_train(self) -> int:
        """Returns the number of image files of the training part. Raises: DataError if none."""
        return _count(self._train_files())

    def num_test(self) -> int | None:
        """Returns the number of image files of the test part; None without one."""
        test = self._test_files(self._train_files())
        return None if test is None else _count(test)

    def sources(self) -> list[Path]:
        """Returns all image files. Raises: DataError if a class of the training part has none."""
        train = self._train_files()
        parts = [train, self._test_files(train) or {}]
        return [path for part in parts for files in part.values() for path in files]

    def decode(self, *, download: bool, on_progress: OnProgress) -> DecodedData:
        """Returns all images, class by class in name order."""
        train = self._train_files()
        names = tuple(train)
        parts = [train] + [part for part in [self._test_files(train)] if part is not None]
        files = [[path for of_class in part.values() for path in of_class] for part in parts]
        pixels = decode_parts(
            [Part(self.root, [Encoded(p, str(p)) for p in paths], len(paths)) for paths in files],
            image_size=self.image_size,
            on_progress=on_progress,
        )
        labels = [
            np.repeat([names.index(name) for name in part], [len(of) for of in part.values()])
            for part in parts
        ]
        first, *others = map(Images, pixels, labels)
        return DecodedData(first, others[0] if others else None, names)

    def _train_files(self) -> ClassFiles:
        root = Path(self.root)
        if not root.is_dir():
            raise DataError(
                f"`root` must be a folder with one folder of images a class, but there is no"
                f" {root.absolute()}. Set `root` to where the data are; relative paths start at the"
                " study file's folder."
            )
        folder = root / "train" if (root / "train").is_dir() else root
        classes = _class_files(folder)
        if not classes:
            raise DataError(
                f"{folder.absolute()} must hold one folder of images a class, but holds no folder."
            )
        for name in (name for name, files in classes.items() if not files):
            raise DataError(
                f"Every class folder must hold images ({', '.join(sorted(SUFFIXES))}), but"
                f" {(folder / name).absolute()} holds none. Add some, or remove the folder."
            )
        return classes

    def _test_files(self, train: ClassFiles) -> ClassFiles | None:
        root = Path(self.root)
        folders = [root / name for name in TEST_FOLDERS if (root / name).is_dir()]
        if not folders or not (root / "train").is_dir():
            return None
        classes = _class_files(folders[0])
        for name in classes.keys() - train.keys():
            raise DataError(
                f"The classes of {folders[0].absolute()} must be those of the training part, but"
                f" `{name}` is none of them{did_you_mean(name, train) or '.'}"
            )
        if not _count(classes):
            raise DataError(f"{folders[0].absolute()} must hold images, but holds none.")
        return classes


def _class_files(folder: Path) -> ClassFiles:
    def is_image(path: Path) -> bool:
        is_named = path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
        return is_named and path.is_file()

    return {
        entry.name: sorted(filter(is_image, entry.rglob("*")))
        for entry in sorted(folder.iterdir())
        if entry.is_dir() and not entry.name.startswith(".")
    }


def _count(classes: ClassFiles) -> int:
    return sum(map(len, classes.values()))
