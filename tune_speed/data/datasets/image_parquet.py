"""Images in Parquet files, in the layout that the Hugging Face hub uses."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tune_speed.core.errors import DataError
from tune_speed.data.base import DatasetConfig, DecodedData, Images, OnProgress
from tune_speed.data.datasets import parquet_files
from tune_speed.data.datasets.decoding import Encoded, Part, decode_parts

FileLabels = dict[Path, NDArray[np.int64]]
"""The labels of each file of a part, in its order."""


class ImageParquet(DatasetConfig):
    """Encoded images in a column of Parquet files, and their labels in another.

    Class names come from the metadata that Hugging Face's `datasets` writes; without it, classes
    are called by their numbers.
    """

    location_fields: ClassVar[frozenset[str]] = frozenset({"train", "test"})

    train: str
    """File of the training part, or a folder whose `*.parquet` files are read in name order."""
    test: str | None = None
    """File or folder of the test part; None: a part of the training images is set aside."""
    image_column: str = "img"
    """Column of the images: a struct with encoded `bytes`, or the bytes themselves."""
    label_column: str = "label"
    """Column of the labels: integers from 0."""
    image_size: int | None = Field(default=None, ge=1)
    """Height and width [pixels] to which images are scaled and cropped; None: all are alike."""

    def num_train(self) -> int:
        """Returns the number of rows of the training part. Raises: DataError if it is missing."""
        return sum(map(parquet_files.num_rows, self._parts()[0]))

    def num_test(self) -> int | None:
        """Returns the number of rows of the test part; None without one."""
        parts = self._parts()
        return sum(map(parquet_files.num_rows, parts[1])) if len(parts) > 1 else None

    def sources(self) -> list[Path]:
        """Returns all files of both parts. Raises: DataError if a part is missing."""
        return [path for files in self._parts() for path in files]

    def decode(self, *, download: bool, on_progress: OnProgress) -> DecodedData:
        """Returns the image of every row, in the files' order."""
        parts = [{path: self._labels(path) for path in files} for files in self._parts()]
        names = self._class_names(parts[0])
        for path, labels in (item for part in parts for item in part.items()):
            parquet_files.check_labels(path, labels, len(names))
        pixels = decode_parts(
            [self._part(part) for part in parts],
            image_size=self.image_size,
            on_progress=on_progress,
        )
        train, *test = (
            Images(images, np.concatenate(list(part.values())))
            for images, part in zip(pixels, parts, strict=True)
        )
        return DecodedData(train, test[0] if test else None, names)

    def _parts(self) -> list[list[Path]]:
        """Returns the files of the training part and, where there is one, of the test part."""
        places = {"train": self.train} | ({} if self.test is None else {"test": self.test})
        return [parquet_files.find_files(field, place) for field, place in places.items()]

    def _labels(self, path: Path) -> NDArray[np.int64]:
        return parquet_files.read_labels(path, self.label_column)

    def _class_names(self, train: FileLabels) -> tuple[str, ...]:
        names = parquet_files.class_names(next(iter(train)), self.label_column)
        if names is not None:
            return names
        largest = max(int(labels.max(initial=0)) for labels in train.values())
        num_images = sum(map(len, train.values()))
        if largest >= num_images > 0:
            raise DataError(
                f"Labels in `{self.train}` must number the classes from 0, but the largest is"
                f" {largest} with {num_images} images. Is `{self.label_column}` the right column?"
            )
        return tuple(str(label) for label in range(largest + 1))

    def _part(self, labels: FileLabels) -> Part:
        files = list(labels)
        name = str(files[0] if len(files) == 1 else files[0].parent)
        return Part(name, self._images(files), sum(map(len, labels.values())))

    def _images(self, files: list[Path]) -> Iterator[Encoded]:
        for path in files:
            yield from parquet_files.read_images(path, self.image_column)
