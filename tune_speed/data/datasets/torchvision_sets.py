"""torchvision's classification sets by name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from tune_speed.core.config import did_you_mean
from tune_speed.core.errors import DataError
from tune_speed.core.text import switch
from tune_speed.data.base import Encoded, EncodedData, EncodedPart
from tune_speed.data.datasets.builtin import bounded_sockets
from tune_speed.data.datasets.image_files import ImageFiles
from tune_speed.data.datasets.image_folder import files_below


class _Kind(NamedTuple):
    place: str
    """Where its files are below `root`: a folder, or a pattern."""
    splits: tuple[Any, Any, Any]
    """What torchvision calls training, validation and test part; None: it has none."""


TWO = ("train", None, "test")
THREE = ("train", "val", "test")
FLAG = (True, None, False)
KINDS = {
    "Country211": _Kind("country211", ("train", "valid", "test")),
    "DTD": _Kind("dtd", THREE),
    "EuroSAT": _Kind("eurosat/2750", ("", None, None)),
    "FGVCAircraft": _Kind("fgvc-aircraft-2013b", THREE),
    "FashionMNIST": _Kind("FashionMNIST/raw", FLAG),
    "Flowers102": _Kind("flowers-102", THREE),
    "Food101": _Kind("food-101", TWO),
    "GTSRB": _Kind("gtsrb", TWO),
    "Imagenette": _Kind("imagenette2", ("train", "val", None)),
    "KMNIST": _Kind("KMNIST/raw", FLAG),
    "MNIST": _Kind("MNIST/raw", FLAG),
    "OxfordIIITPet": _Kind("oxford-iiit-pet", ("trainval", None, "test")),
    "RenderedSST2": _Kind("rendered-sst2", THREE),
    "STL10": _Kind("stl10_binary", TWO),
    "SVHN": _Kind("*_32x32.mat", TWO),
    "USPS": _Kind("usps*.bz2", FLAG),
}
"""Sets that need no choice but their part; CIFAR has entries of its own."""


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
        place = Path(self.root) / KINDS[self.set].place
        found = files_below(place) if place.is_dir() else sorted(place.parent.glob(place.name))
        return found or [place]

    def listing(self) -> EncodedData:
        made = [None if split is None else self._made(split) for split in KINDS[self.set].splits]
        learnt = [*map(_samples, filter(None, made[:2]))]
        tested = [*map(_samples, filter(None, made[2:]))]
        train = self._part(learnt)
        held = len(learnt[1][1]) if made[1] is not None else 0
        numbers = range(int(train.labels.max(initial=0)) + 1)
        # Those of Imagenette are several words each.
        names = [
            n[0] if isinstance(n, tuple) else str(n) for n in getattr(made[0], "classes", numbers)
        ]
        return EncodedData(train, self._part(tested) if tested else None, tuple(names), held)

    def fetch(self) -> None:
        with bounded_sockets():
            for split in KINDS[self.set].splits:
                if split is not None:
                    self._made(split, download=True)

    def _made(self, split: Any, *, download: bool = False) -> Any:
        """Returns torchvision's own object. Raises: DataError if files are missing or damaged."""
        from torchvision import datasets

        part = {} if split == "" else {"train" if isinstance(split, bool) else "split": split}
        try:
            return getattr(datasets, self.set)(self.root, **part, download=download)
        except Exception as error:
            # Its readers raise almost anything on files that are missing or damaged.
            hint = "Is the server reachable?" if download else f"Try `{switch('download')}`."
            raise DataError(
                f"{Path(self.root).absolute()} must hold {self.set} as torchvision stores it, but:"
                f" {str(error).rstrip('.')}. {hint}"
            ) from error

    def _part(self, parts: list[tuple[Any, NDArray[np.int64]]]) -> EncodedPart:
        def images() -> Iterator[Encoded]:
            for files, labels in parts:
                for number in range(len(labels)):
                    name = f"image {number} of {self.set}"
                    one = files[number]
                    is_path = isinstance(one, str | Path)
                    yield Encoded(Path(one), str(one)) if is_path else Encoded(_pnm(one), name)

        return EncodedPart(self.set, images, np.concatenate([labels for _, labels in parts]))


def _samples(made: Any) -> tuple[Any, NDArray[np.int64]]:
    """Returns paths or arrays (H, W) or (H, W, C) of images, and their labels, from 0."""
    pairs = getattr(made, "samples", None) or getattr(made, "_samples", None)
    if pairs is not None:
        return [path for path, _ in pairs], np.array([label for _, label in pairs], np.int64)
    fields = ("targets", "labels", "_labels")
    labels = next(getattr(made, name) for name in fields if hasattr(made, name))
    fields = ("data", "_image_files", "_images")
    images = next(getattr(made, name) for name in fields if hasattr(made, name))
    numbers = np.asarray(labels, np.int64)
    if isinstance(images, list):
        return images, numbers
    pixels = np.asarray(images)
    # Channels first, as in SVHN and STL10.
    return pixels.transpose(0, 2, 3, 1) if pixels.ndim == 4 else pixels, numbers


def _pnm(pixels: NDArray[np.uint8]) -> bytes:
    """Returns pixels (H, W) or (H, W, 3) as a file without compression."""
    height, width = pixels.shape[:2]
    return f"P{6 if pixels.ndim == 3 else 5} {width} {height} 255\n".encode() + pixels.tobytes()
