"""CIFAR-10 and CIFAR-100 as torchvision stores them."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tune_speed.data.base import DatasetConfig, DecodedData, Images, OnProgress
from tune_speed.errors import DataError

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10

NUM_TRAIN, NUM_TEST = 50_000, 10_000
DOWNLOAD_STALL_S = 60.0
"""Longest silence of the server before a download is given up."""


class Cifar10(DatasetConfig):
    """CIFAR-10: 50,000 training and 10,000 test images, 32x32 RGB, 10 classes.

    Source: A. Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images.
    """

    location_fields: ClassVar[frozenset[str]] = frozenset({"root"})

    root: str = "data"
    """Folder that holds `cifar-10-batches-py`; `--download` fills it."""

    def num_train(self) -> int:
        """Returns 50,000. Raises: DataError if the folder is missing."""
        _check_folder(self.sources()[0].parent)
        return NUM_TRAIN

    def num_test(self) -> int | None:
        """Returns 10,000."""
        return NUM_TEST

    def sources(self) -> list[Path]:
        """Returns the seven files of the Python version."""
        files = [f"data_batch_{i}" for i in range(1, 6)]
        folder = Path(self.root) / "cifar-10-batches-py"
        return [folder / name for name in [*files, "test_batch", "batches.meta"]]

    def decode(self, *, download: bool, on_progress: OnProgress) -> DecodedData:
        """Returns the images as torchvision reads them, after it checked the files' MD5."""
        from torchvision.datasets import CIFAR10

        return _read(CIFAR10, self.sources()[0].parent, download, on_progress)


class Cifar100(DatasetConfig):
    """CIFAR-100: 50,000 training and 10,000 test images, 32x32 RGB, 100 classes.

    Source: A. Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images.
    """

    location_fields: ClassVar[frozenset[str]] = frozenset({"root"})

    root: str = "data"
    """Folder that holds `cifar-100-python`; `--download` fills it."""

    def num_train(self) -> int:
        """Returns 50,000. Raises: DataError if the folder is missing."""
        _check_folder(self.sources()[0].parent)
        return NUM_TRAIN

    def num_test(self) -> int | None:
        """Returns 10,000."""
        return NUM_TEST

    def sources(self) -> list[Path]:
        """Returns the three files of the Python version."""
        return [Path(self.root) / "cifar-100-python" / name for name in ("train", "test", "meta")]

    def decode(self, *, download: bool, on_progress: OnProgress) -> DecodedData:
        """Returns the images as torchvision reads them, after it checked the files' MD5."""
        from torchvision.datasets import CIFAR100

        return _read(CIFAR100, self.sources()[0].parent, download, on_progress)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(
            f"`root` must be a folder that holds {folder.name}, but there is no"
            f" {folder.absolute()}. Try `--download`, or set `root` to where the data are."
        )


def _read(
    kind: "type[CIFAR10]", folder: Path, download: bool, on_progress: OnProgress
) -> DecodedData:
    if not download:
        _check_folder(folder)
    try:
        with _stall_limit():
            parts = [kind(folder.parent, train=t, download=download) for t in (True, False)]
    except (OSError, RuntimeError, EOFError) as error:
        hint = "Is the server reachable?" if download else "Try `--download`."
        raise DataError(
            f"{folder.absolute()} must hold {kind.__name__} as torchvision stores it, but:"
            f" {str(error).rstrip('.')}. {hint}"
        ) from error
    on_progress(NUM_TRAIN + NUM_TEST, NUM_TRAIN + NUM_TEST)
    train, test = (Images(part.data, np.array(part.targets, dtype=np.int64)) for part in parts)
    return DecodedData(train, test, tuple(parts[0].classes))


@contextmanager
def _stall_limit() -> Iterator[None]:
    # torchvision opens its sockets without a time limit: a silent server would hang the process.
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_STALL_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
