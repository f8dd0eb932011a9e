"""What every data set gives: its size without decoding, its files, and its decoded images."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tune_speed.core.config import Config
from tune_speed.core.errors import DataError
from tune_speed.data.mapped_rows import Pixels

OnProgress = Callable[[int, int], None]
"""Progress callback: `on_progress(images_done, images_total)`."""


class Images(NamedTuple):
    """Images and their labels, in the same order."""

    pixels: Pixels
    """Shape (N, H, W, C), 0 to 255."""
    labels: NDArray[np.int64]
    """Shape (N,), from 0 up to the number of classes, exclusive."""


class DecodedData(NamedTuple):
    """A whole data set in memory."""

    train: Images
    test: Images | None
    """None where the data set brings no test part."""
    class_names: tuple[str, ...]


class DatasetConfig(Config):
    """Base of the data sets: where one lies and how it is read."""

    location_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that say where the data lie, not what they are: no part of a workload's identity."""

    def located(self) -> Self:
        """Returns the same data set with absolute paths, which mean the same in every process."""
        given = {name: getattr(self, name) for name in self.location_fields}
        absolute = {name: os.path.abspath(path) for name, path in given.items() if path is not None}
        return self.model_copy(update=absolute)

    def num_train(self) -> int:
        """Returns the number of images of the training part, without decoding any.

        Raises:
            DataError: The data are missing; the message names the folder and what to try.
        """
        raise NotImplementedError

    def num_test(self) -> int | None:
        """Returns the number of images of the test part; None if the data set brings none."""
        raise NotImplementedError

    def sources(self) -> list[Path]:
        """Returns the files whose size and time of change key the cache; some may be missing."""
        raise NotImplementedError

    def decode(self, *, download: bool, on_progress: OnProgress) -> DecodedData:
        """Returns every image, decoded; takes long.

        `download` fetches missing data, where the data set knows from where.

        Raises:
            DataError: The data are missing or unreadable; the message names the file and row.
        """
        raise NotImplementedError


@contextmanager
def reading(dataset: DatasetConfig) -> Iterator[None]:
    """Turns errors of the file system within into DataError.

    Raises:
        DataError: A file cannot be read, has a name that none can have, or does not fit in memory.
    """
    name = repr(dataset)
    name = name if len(name) <= 300 else f"{name[:299]}…"
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise DataError(f"The files of {name} must be readable, but got: {why}.") from error
    except MemoryError as error:
        raise DataError(
            f"{name} must fit in this machine's memory, but does not. Set a smaller `image_size`"
            " where there is one, or take fewer images."
        ) from error
