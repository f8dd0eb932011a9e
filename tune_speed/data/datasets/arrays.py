"""Images in NumPy arrays, of any number of channels and of 8 or 16 bits."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from tune_speed.core.config import Config
from tune_speed.core.errors import DataError
from tune_speed.data.base import Counts, DatasetConfig, DecodedData, Grouped, Images, OnProgress
from tune_speed.data.datasets.image_table import Labels, number_labels

CHUNK_BYTES = 64 * 2**20


class Scale(Config):
    """Which values of 16 bits are the darkest and the brightest."""

    low: int = Field(ge=0, le=65535)
    """Value that becomes 0, as does what is below it."""
    high: int = Field(ge=0, le=65535)
    """Value that becomes 255, as does what is above it."""

    @model_validator(mode="after")
    def _has_a_width(self) -> Self:
        if self.low >= self.high:
            raise ValueError("high must be above low")
        return self


class _Part(NamedTuple):
    images: NDArray[Any]
    labels: NDArray[Any]


class Arrays(DatasetConfig):
    """Images in `.npy` files: (N, H, W) or (N, H, W, C), and labels (N,) or (N, K).

    Files are mapped, and read in chunks of 64 MiB. Labels are numbers or names of classes; of
    shape (N, K) they are 1 for each of the K classes that an image is of, and else 0.
    """

    location_fields: ClassVar[frozenset[str]] = frozenset(
        {f"{part}{kind}" for part in ("", "validation_", "test_") for kind in ("images", "labels")}
        | {"groups"}
    )

    images: str
    """File of the training images, uint8 or uint16."""
    labels: str
    """File of their labels."""
    validation_images: str | None = None
    """File of the validation images; null: a part of the training images is set aside."""
    validation_labels: str | None = None
    """File of their labels."""
    test_images: str | None = None
    """File of the test images; null: a part of the training images is set aside."""
    test_labels: str | None = None
    """File of their labels."""
    groups: str | None = None
    """File of the group of each training image, (N,), such as a patient, which must stay in one
    part; those of the validation images, if there are any, come after them. Null: none."""
    scale: Scale | None = None
    """How 16 bits become 8: value v becomes 255 (v - low) / (high - low), rounded and kept within
    0 to 255; needed by uint16 alone."""

    @model_validator(mode="after")
    def _are_pairs(self) -> Self:
        for part in ("validation", "test"):
            fields = [f"{part}_images", f"{part}_labels"]
            given = [name for name in fields if getattr(self, name) is not None]
            if len(given) == 1:
                raise ValueError(f"{' and '.join(fields)} must be given together, or neither")
        return self

    def counts(self) -> Counts:
        parts = self._parts()
        held = len(parts["validation"].labels) if "validation" in parts else 0
        test = len(parts["test"].labels) if "test" in parts else None
        count, groups = len(parts["train"].labels) + held, self._groups()
        if groups is None:
            return Counts(count, test, held)
        labels, _ = self._labels(parts)
        return Counts(count, test, held, Grouped(labels[0], groups))

    def num_train(self) -> int:
        return self.counts().train

    def num_test(self) -> int | None:
        return self.counts().test

    def num_validation(self) -> int:
        return self.counts().validation

    def sources(self) -> list[Path]:
        given = (getattr(self, name) for name in sorted(self.location_fields))
        return [Path(place) for place in given if place is not None]

    def decode(self, *, download: bool, on_progress: OnProgress) -> DecodedData:
        parts = self._parts()
        labels, names = self._labels(parts)
        learnt = [part.images for name, part in parts.items() if name != "test"]
        whole = [learnt, *([[parts["test"].images]] if "test" in parts else [])]
        total = sum(len(array) for arrays in whole for array in arrays)
        done = 0

        def count(images: int) -> None:
            nonlocal done
            done += images
            on_progress(done, total)

        train, *test = (
            Images(_pixels(arrays, self.scale, count), own)
            for arrays, own in zip(whole, labels, strict=True)
        )
        held = len(parts["validation"].labels) if "validation" in parts else 0
        return DecodedData(train, test[0] if test else None, names, held, self._groups())

    def _parts(self) -> dict[str, _Part]:
        """Returns the parts that are given, mapped. Raises: DataError if one cannot be read."""
        parts = {}
        for part, prefix in (("train", ""), ("validation", "validation_"), ("test", "test_")):
            files = [getattr(self, f"{prefix}{kind}") for kind in ("images", "labels")]
            if files[0] is None:
                continue
            images, labels = (
                _mapped(f"{prefix}{kind}", file)
                for kind, file in zip(("images", "labels"), files, strict=True)
            )
            is_fit = images.dtype == np.uint8 or (images.dtype == np.uint16 and self.scale)
            if images.ndim not in (3, 4) or not is_fit:
                raise DataError(
                    f"{files[0]} must hold uint8, or uint16 with `scale: {{low: …, high: …}}`, of"
                    f" the shape (N, H, W) or (N, H, W, C), but holds {images.dtype} of the shape"
                    f" {images.shape}."
                )
            if labels.ndim not in (1, 2) or len(labels) != len(images):
                raise DataError(
                    f"{files[1]} must hold a label, or a row of them, for each of the {len(images)}"
                    f" images, but has the shape {labels.shape}."
                )
            parts[part] = _Part(images[..., None] if images.ndim == 3 else images, labels)
        shapes = {part.images.shape[1:] for part in parts.values()}
        kinds = {(part.labels.ndim, *part.labels.shape[1:]) for part in parts.values()}
        if len(shapes) > 1 or len(kinds) > 1:
            raise DataError(f"Arrays of all parts must be alike, but are of {shapes} and {kinds}.")
        return parts

    def _labels(self, parts: dict[str, _Part]) -> tuple[list[NDArray[Any]], tuple[str, ...]]:
        """Returns the labels of the training part, with validation, and of the test part."""
        learnt = np.concatenate([p.labels for name, p in parts.items() if name != "test"])
        every = [learnt, *([parts["test"].labels] if "test" in parts else [])]
        if learnt.ndim == 2:
            for labels in every:
                if not np.isin(labels, (0, 1)).all():
                    raise DataError(f"{self.labels} must hold 0 and 1 alone, as it is (N, K).")
            names = tuple(map(str, range(learnt.shape[1])))
            return [labels.astype(np.float32) for labels in every], names
        if learnt.dtype.kind not in "iuU":
            raise DataError(f"{self.labels} must hold integers or texts, but holds {learnt.dtype}.")
        kind: Any = object if learnt.dtype.kind == "U" else np.int64
        given = [
            Labels(labels.astype(kind), None, len(labels), f"row {{}} of {file}".format)
            for labels, file in zip(every, (self.labels, self.test_labels), strict=False)
        ]
        return number_labels(given, num_learnt=1)

    def _groups(self) -> NDArray[np.int64] | None:
        if self.groups is None:
            return None
        groups = _mapped("groups", self.groups)
        count = sum(len(part.labels) for name, part in self._parts().items() if name != "test")
        if groups.shape != (count,):
            raise DataError(
                f"{self.groups} must have the shape ({count},), but has {groups.shape}."
            )
        return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def _mapped(field: str, file: str) -> NDArray[Any]:
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"`{field}` must be an array that `numpy.save` wrote, but {Path(file).absolute()}"
            f" cannot be read: {error}"
        ) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"`{field}` must be one array (.npy), but {file} holds several.")
    return array


def _pixels(
    arrays: Sequence[NDArray[Any]], scale: Scale | None, count: Callable[[int], None]
) -> NDArray[np.uint8]:
    """Returns all images as 8 bits: mapped as they are, or in a file that ends with its map."""
    if len(arrays) == 1 and arrays[0].dtype == np.uint8:
        count(len(arrays[0]))
        return arrays[0]
    shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
    with tempfile.TemporaryFile() as file:
        pixels = np.memmap(file, np.uint8, "w+", shape=shape)
    step = max(1, CHUNK_BYTES // (4 * int(np.prod(shape[1:]))))
    end = 0
    for array in arrays:
        for start in range(0, len(array), step):
            chunk = array[start : start + step]
            pixels[end : end + len(chunk)] = _scaled(chunk, scale)
            end += len(chunk)
            count(len(chunk))
    return np.asarray(pixels)


def _scaled(values: NDArray[Any], scale: Scale | None) -> NDArray[np.uint8]:
    if values.dtype == np.uint8 or scale is None:
        return values
    width = scale.high - scale.low
    above = values.clip(scale.low, scale.high).astype(np.uint32) - scale.low
    # Halves are rounded up, in whole numbers.
    return ((2 * 255 * above + width) // (2 * width)).astype(np.uint8)
