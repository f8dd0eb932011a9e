"""Images in NumPy arrays, of any number of channels and of 8 or 16 bits."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from tune_speed.core.config import Config
from tune_speed.core.errors import DataError
from tune_speed.data import base

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


class Arrays(base.DatasetConfig):
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
            images, labels = f"{part}_images", f"{part}_labels"
            if (getattr(self, images) is None) != (getattr(self, labels) is None):
                raise ValueError(f"{images} and {labels} must be given together, or neither")
        return self

    def counts(self) -> base.Counts:
        return base.Counts.of(self._data(lambda arrays: arrays[0]))

    def sources(self) -> list[Path]:
        given = (getattr(self, name) for name in sorted(self.location_fields))
        return [*map(Path, filter(None, given))]

    def decode(self, *, download: bool, on_progress: base.OnProgress) -> base.DecodedData:
        counts, done = self.counts(), 0

        def count(images: int) -> None:
            nonlocal done
            done += images
            on_progress(done, counts.train + (counts.test or 0))

        return self._data(lambda arrays: _pixels(arrays, self.scale, count))

    def _data(self, pixels_of: Callable[[list[base.Array]], base.Array]) -> base.DecodedData:
        """Returns what the files hold; the pixels of a part are made of its mapped arrays.

        Raises: DataError for what does not fit.
        """
        parts = [self._part(p) for p in ("", "validation_", "test_") if getattr(self, f"{p}images")]
        shapes = {(images.shape[1:], labels.shape[1:]) for images, labels in parts}
        if len(shapes) > 1:
            raise DataError(f"Images and labels of all parts must be alike, but are of {shapes}.")
        tested = [parts.pop()] if self.test_images is not None else []
        whole = [part for part in (parts, tested) if part]
        labels, names = self._numbered([np.concatenate([own for _, own in p]) for p in whole])
        groups = None if self.groups is None else _mapped("groups", self.groups)
        if groups is not None and groups.shape != (shape := (len(labels[0]),)):
            must = f"{self.groups} must have the shape {shape}"
            raise DataError(f"{must}, but has {groups.shape}.")
        if groups is not None:
            groups = np.unique(groups, return_inverse=True)[1].astype(np.int64)
        held = sum(len(own) for _, own in parts[1:])
        pixels = (pixels_of([images for images, _ in p]) for p in whole)
        train, *test = map(base.Images, pixels, labels)
        return base.DecodedData(train, test[0] if test else None, names, held, groups)

    def _part(self, part: str) -> tuple[base.Array, base.Array]:
        """Returns images (N, H, W, C) and labels of a part, mapped. Raises: DataError."""
        fields = (f"{part}images", f"{part}labels")
        files = [getattr(self, field) for field in fields]
        images, labels = map(_mapped, fields, files)
        is_fit = images.dtype == np.uint8 or (images.dtype == np.uint16 and self.scale)
        if images.ndim not in (3, 4) or not is_fit:
            raise DataError(
                f"{files[0]} must hold uint8, or uint16 with `scale: {{low: …, high: …}}`, of the"
                f" shape (N, H, W) or (N, H, W, C), but holds {images.dtype} of {images.shape}."
            )
        if labels.ndim not in (1, 2) or len(labels) != len(images):
            raise DataError(
                f"{files[1]} must hold a label, or a row of them, for each of the {len(images)}"
                f" images, but has the shape {labels.shape}."
            )
        return images[..., None] if images.ndim == 3 else images, labels

    def _numbered(self, every: list[base.Array]) -> tuple[list[base.Array], tuple[str, ...]]:
        learnt = every[0]
        if learnt.ndim == 2:
            if not all(np.isin(labels, (0, 1)).all() for labels in every):
                raise DataError(f"{self.labels} must hold 0 and 1 alone, as it is (N, K).")
            names = tuple(map(str, range(learnt.shape[1])))
            return [labels.astype(np.float32) for labels in every], names
        if learnt.dtype.kind not in "iuU":
            raise DataError(f"{self.labels} must hold integers or texts, but holds {learnt.dtype}.")
        kind: Any = object if learnt.dtype.kind == "U" else np.int64
        files = [
            base.Labels(labels.astype(kind), None, len(labels), base.row_of(str(file)))
            for labels, file in zip(every, (self.labels, self.test_labels), strict=False)
        ]
        return base.number_labels(files)


def _mapped(field: str, file: str) -> base.Array:
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
    arrays: list[base.Array], scale: Scale | None, count: Callable[[int], None]
) -> base.Array:
    """Returns all images as 8 bits: mapped as they are, or in a file that ends with its map."""
    if len(arrays) == 1 and arrays[0].dtype == np.uint8:
        count(len(arrays[0]))
        return arrays[0]
    shape = (sum(map(len, arrays)), *arrays[0].shape[1:])
    with tempfile.TemporaryFile() as file:
        pixels = np.memmap(file, np.uint8, "w+", shape=shape)
    step = max(1, CHUNK_BYTES // (4 * int(np.prod(shape[1:]))))
    end = 0
    for chunk in (array[at : at + step] for array in arrays for at in range(0, len(array), step)):
        values, start, end = chunk, end, end + len(chunk)
        if scale is not None and chunk.dtype == np.uint16:
            width = scale.high - scale.low
            above = chunk.clip(scale.low, scale.high).astype(np.uint32) - scale.low
            # Halves are rounded up, in whole numbers.
            values = (2 * 255 * above + width) // (2 * width)
        pixels[start:end] = values
        count(len(chunk))
    return np.asarray(pixels)
