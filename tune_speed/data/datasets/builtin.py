"""Data sets that are known by name: scikit-learn's digits, and CIFAR as torchvision stores it."""

import hashlib
import io
import pickle
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from tune_speed.core.errors import DataError
from tune_speed.core.text import switch
from tune_speed.data.base import DatasetConfig, DecodedData, Images, OnProgress

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10


NUM_IMAGES = 1797


class Digits(DatasetConfig):
    """1,797 handwritten digits in 10 classes, 8x8 pixels, one channel; no test part of its own.

    Source: E. Alpaydin, C. Kaynak 1998 (UCI Optical Recognition of Handwritten Digits), through
    `sklearn.datasets.load_digits`.
    """

    scale: int = Field(default=1, ge=1, le=8)
    """Factor by which each pixel is repeated in both directions: 4 gives 32x32 images."""

    def num_train(self) -> int:
        return NUM_IMAGES

    def num_test(self) -> int | None:
        return None

    def sources(self) -> list[Path]:
        """Returns nothing: the images never change."""
        return []

    def decode(self, *, download: bool, on_progress: OnProgress) -> DecodedData:
        """Returns the digits, their 0 to 16 stretched to 0 to 255."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels = np.rint(digits.images * 255 / 16).astype(np.uint8)[..., None]
        pixels = pixels.repeat(self.scale, axis=1).repeat(self.scale, axis=2)
        on_progress(len(pixels), NUM_IMAGES)
        train = Images(pixels, digits.target.astype(np.int64))
        return DecodedData(train, None, tuple(str(name) for name in digits.target_names))


_RECONSTRUCT = np.empty(0).__reduce__()[0]
# All that the published files name: an array of bytes. Lists and texts need no name.
_ALLOWED: Mapping[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


def read_batch(path: Path, *, md5: str) -> Mapping[str, Any]:
    """Returns the fields of a published file, of which `md5` is the digest.

    Raises: DataError if the file is missing, is another one, or names what no such file needs;
        OSError if it cannot be read.
    """
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise DataError(f"{path.name} is missing or corrupted")
    try:
        fields = _Unpickler(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:
        # Bytes that are no pickle make almost any error.
        raise DataError(f"{path.name} is no file of CIFAR: {error}") from error
    if not isinstance(fields, dict):
        raise DataError(f"{path.name} is no file of CIFAR: it holds a {type(fields).__name__}")
    return fields


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Returns one of the few names that are allowed. Raises: UnpicklingError."""
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module[:80]}.{name[:80]}")
        return _ALLOWED[module, name]


NUM_TRAIN, NUM_TEST = 50_000, 10_000
# Longest silence of the server before a download is given up.
DOWNLOAD_STALL_S = 60.0
# What NumPy raises for fields that are missing or of another shape.
UNFIT = (KeyError, TypeError, ValueError)


class Cifar10(DatasetConfig):
    """CIFAR-10: 50,000 training and 10,000 test images, 32x32 RGB, 10 classes.

    Source: A. Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images.
    """

    location_fields: ClassVar[frozenset[str]] = frozenset({"root"})
    torchvision_name: ClassVar[str] = "CIFAR10"
    files: ClassVar[tuple[str, ...]] = (
        *(f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)),
        "cifar-10-batches-py/test_batch",
        "cifar-10-batches-py/batches.meta",
    )
    """Of the Python version, below `root`."""

    root: str = "data"
    """Folder that holds `cifar-10-batches-py`; `--download` fills it."""

    def num_train(self) -> int:
        _check_folder(self.sources()[0].parent)
        return NUM_TRAIN

    def num_test(self) -> int | None:
        return NUM_TEST

    def sources(self) -> list[Path]:
        return [Path(self.root) / name for name in self.files]

    def decode(self, *, download: bool, on_progress: OnProgress) -> DecodedData:
        from torchvision import datasets

        kind = getattr(datasets, self.torchvision_name)
        return _read(kind, self.sources()[0].parent, download, on_progress)


class Cifar100(Cifar10):
    """CIFAR-100: 50,000 training and 10,000 test images, 32x32 RGB, 100 classes.

    Source: A. Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images.
    """

    torchvision_name: ClassVar[str] = "CIFAR100"
    files: ClassVar[tuple[str, ...]] = tuple(
        f"cifar-100-python/{name}" for name in ("train", "test", "meta")
    )

    root: str = "data"
    """Folder that holds `cifar-100-python`; `--download` fills it."""


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(
            f"`root` must be a folder that holds {folder.name}, but there is no"
            f" {folder.absolute()}. Try `{switch('download')}`, or set `root` to where the data"
            " are."
        )


def _read(
    kind: "type[CIFAR10]", folder: Path, download: bool, on_progress: OnProgress
) -> DecodedData:
    if not download:
        _check_folder(folder)
    try:
        if download:
            _download(kind, folder)
        train, test = (_part(files, folder) for files in (kind.train_list, kind.test_list))
        names = read_batch(folder / kind.meta["filename"], md5=kind.meta["md5"])[kind.meta["key"]]
    except (OSError, RuntimeError, EOFError, DataError, *UNFIT) as error:
        hint = "Is the server reachable?" if download else f"Try `{switch('download')}`."
        raise DataError(
            f"{folder.absolute()} must hold {kind.__name__} as torchvision stores it, but:"
            f" {str(error).rstrip('.')}. {hint}"
        ) from error
    on_progress(NUM_TRAIN + NUM_TEST, NUM_TRAIN + NUM_TEST)
    return DecodedData(train, test, tuple(map(str, names)))


def _download(kind: "type[CIFAR10]", folder: Path) -> None:
    from torchvision.datasets.utils import check_integrity, download_and_extract_archive

    every = [*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])]
    if all(check_integrity(str(folder / name), md5) for name, md5 in every):
        return
    with bounded_sockets():
        download_and_extract_archive(
            kind.url, str(folder.parent), filename=kind.filename, md5=kind.tgz_md5
        )


@contextmanager
def bounded_sockets() -> Iterator[None]:
    """Bounds each wait for a server: torchvision opens its sockets without a time limit."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_STALL_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _part(files: Sequence[tuple[str, str]], folder: Path) -> Images:
    """Returns the images of one part. Raises: DataError, or one of `UNFIT` where fields are odd."""
    batches = [read_batch(folder / name, md5=md5) for name, md5 in files]
    pixels = np.vstack([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
    labels = [label for b in batches for label in b["labels" if "labels" in b else "fine_labels"]]
    return Images(pixels.transpose(0, 2, 3, 1), np.array(labels, dtype=np.int64))
