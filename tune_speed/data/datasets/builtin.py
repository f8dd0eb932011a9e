"""Data sets that are known by name: scikit-learn's digits, and those of torchvision."""

import hashlib
import io
import pickle
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import DataError
from tune_speed.core.text import switch
from tune_speed.data import base
from tune_speed.data.datasets.decoding import ImageFiles
from tune_speed.data.datasets.image_folder import ORDER, files_below

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10


NUM_IMAGES = 1797


class Digits(base.DatasetConfig):
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

    def decode(self, *, download: bool, on_progress: base.OnProgress) -> base.DecodedData:
        """Returns the digits, their 0 to 16 stretched to 0 to 255."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels = np.rint(digits.images * 255 / 16).astype(np.uint8)[..., None]
        pixels = pixels.repeat(self.scale, axis=1).repeat(self.scale, axis=2)
        on_progress(len(pixels), NUM_IMAGES)
        train = base.Images(pixels, digits.target.astype(np.int64))
        return base.DecodedData(train, None, tuple(str(name) for name in digits.target_names))


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
    if isinstance(fields, dict):
        return fields
    raise DataError(f"{path.name} is no file of CIFAR: it holds a {type(fields).__name__}")


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


class Cifar10(base.DatasetConfig):
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
        folder = self.sources()[0].parent
        if not folder.is_dir():
            raise DataError(
                f"`root` must be a folder that holds {folder.name}, but there is no"
                f" {folder.absolute()}. Try `{switch('download')}`, or set `root` to where it is."
            )
        return NUM_TRAIN

    def num_test(self) -> int | None:
        return NUM_TEST

    def sources(self) -> list[Path]:
        return [Path(self.root) / name for name in self.files]

    def decode(self, *, download: bool, on_progress: base.OnProgress) -> base.DecodedData:
        from torchvision import datasets

        kind, folder = getattr(datasets, self.torchvision_name), self.sources()[0].parent
        if not download:
            self.num_train()
        try:
            if download:
                _download(kind, folder)
            train, test = (_part(files, folder) for files in (kind.train_list, kind.test_list))
            names = read_batch(folder / kind.meta["filename"], md5=kind.meta["md5"])
            class_names = tuple(map(str, names[kind.meta["key"]]))
        except (OSError, RuntimeError, EOFError, DataError, *UNFIT) as error:
            raise _not_as_stored(folder, kind.__name__, error, download) from error
        on_progress(NUM_TRAIN + NUM_TEST, NUM_TRAIN + NUM_TEST)
        return base.DecodedData(train, test, class_names)


class Cifar100(Cifar10):
    """CIFAR-100: 50,000 training and 10,000 test images, 32x32 RGB, 100 classes.

    Source: as of CIFAR-10.
    """

    torchvision_name: ClassVar[str] = "CIFAR100"
    files: ClassVar[tuple[str, ...]] = tuple(
        f"cifar-100-python/{name}" for name in ("train", "test", "meta")
    )

    root: str = "data"
    """Folder that holds `cifar-100-python`; `--download` fills it."""


def _not_as_stored(folder: Path, name: str, error: Exception, download: bool) -> DataError:
    hint = "Is the server reachable?" if download else f"Try `{switch('download')}`."
    return DataError(
        f"{folder.absolute()} must hold {name} as torchvision stores it, but:"
        f" {str(error).rstrip('.')}. {hint}"
    )


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


def _part(files: Sequence[tuple[str, str]], folder: Path) -> base.Images:
    batches = [read_batch(folder / name, md5=md5) for name, md5 in files]
    pixels = np.vstack([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
    labels = [label for b in batches for label in b["labels" if "labels" in b else "fine_labels"]]
    return base.Images(pixels.transpose(0, 2, 3, 1), np.array(labels, dtype=np.int64))


THREE = ("train", "val", "test")
TWO = ("train", None, "test")
FLAG = (True, None, False)
KINDS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "Country211": ("country211", ("train", "valid", "test")),
    "DTD": ("dtd", THREE),
    "EuroSAT": ("eurosat/2750", ("", None, None)),
    "FGVCAircraft": ("fgvc-aircraft-2013b", THREE),
    "FashionMNIST": ("FashionMNIST/raw", FLAG),
    "Flowers102": ("flowers-102", THREE),
    "Food101": ("food-101", TWO),
    "GTSRB": ("gtsrb", TWO),
    "Imagenette": ("imagenette2", ("train", "val", None)),
    "KMNIST": ("KMNIST/raw", FLAG),
    "MNIST": ("MNIST/raw", FLAG),
    "OxfordIIITPet": ("oxford-iiit-pet", ("trainval", None, "test")),
    "RenderedSST2": ("rendered-sst2", THREE),
    "STL10": ("stl10_binary", TWO),
    "SVHN": ("*_32x32.mat", TWO),
    "USPS": ("usps*.bz2", FLAG),
}
"""torchvision's sets that need no choice but their part, apart from CIFAR: where their files are
below `root`, a folder or a pattern, and what training, validation and test part are called."""


class TorchvisionSet(ImageFiles):
    """A classification set of torchvision by its name there, with the parts that it has.

    Parts that it lacks are set aside from the training images.
    """

    location_fields: ClassVar[frozenset[str]] = frozenset({"root"})

    set: str = Field(min_length=1)
    """Name of the set, such as `FashionMNIST` or `Flowers102`."""
    root: str = "data"
    """Folder that torchvision keeps it in; `--download` fills it."""

    @field_validator("set")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in KINDS:
            near = did_you_mean(name, KINDS) or "; CIFAR-10 is `{name: cifar10}`"
            raise ValueError(f"set must be one of {', '.join(KINDS)}{near}")
        return name

    def sources(self) -> list[Path]:
        place = Path(self.root) / KINDS[self.set][0]
        found = files_below(place) if place.is_dir() else sorted(place.parent.glob(place.name))
        return found or [place]

    def listing(self) -> base.EncodedData:
        of = zip(ORDER, KINDS[self.set][1], strict=True)
        made = {part: self._made(split) for part, split in of if split is not None}
        files = [self._listed(part, one) for part, one in made.items()]
        # Those of Imagenette are several words each.
        names = [
            n[0] if isinstance(n, tuple) else str(n) for n in getattr(made["train"], "classes", ())
        ]
        return base.encoded_data(self.set, files, names or None)

    def fetch(self) -> None:
        with bounded_sockets():
            for split in filter(lambda each: each is not None, KINDS[self.set][1]):
                self._made(split, download=True)

    def _made(self, split: Any, *, download: bool = False) -> Any:
        """Returns torchvision's own object. Raises: DataError if files are missing or damaged."""
        from torchvision import datasets

        part = {} if split == "" else {"train" if isinstance(split, bool) else "split": split}
        try:
            return getattr(datasets, self.set)(self.root, **part, download=download)
        except Exception as error:
            # Its readers raise almost anything on files that are missing or damaged.
            raise _not_as_stored(Path(self.root), self.set, error, download) from error

    def _listed(self, part: str, made: Any) -> base.Listed:
        files, labels = _samples(made)
        where = f"image {{}} of {self.set}".format

        def images() -> Iterator[base.Encoded]:
            for number, one in enumerate(files):
                if isinstance(one, str | Path):
                    yield base.Encoded(Path(one), str(one))
                    continue
                # A PNM file: pixels as they are.
                head = f"P{6 if one.ndim == 3 else 5} {one.shape[1]} {one.shape[0]} 255\n"
                yield base.Encoded(head.encode() + one.tobytes(), where(number))

        return base.Listed(part, images, base.Labels(labels, None, len(labels), where))


def _samples(made: Any) -> tuple[Any, NDArray[np.int64]]:
    """Returns paths or arrays (H, W) or (H, W, C) of images, and their labels, from 0."""

    def first(*names: str) -> Any:
        return next((getattr(made, name) for name in names if hasattr(made, name)), None)

    pairs = first("samples", "_samples")
    given = first("data", "_image_files", "_images"), first("targets", "labels", "_labels")
    images, labels = zip(*pairs, strict=True) if pairs else given
    numbers = np.asarray(labels, np.int64)
    if isinstance(images, list | tuple):
        return images, numbers
    pixels = np.asarray(images)
    # Channels first, as in SVHN and STL10.
    return pixels.transpose(0, 2, 3, 1) if pixels.ndim == 4 else pixels, numbers
