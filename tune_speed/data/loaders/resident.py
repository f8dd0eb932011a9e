"""The loader that keeps the whole set on the device, and batches for evaluation."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tune_speed.data.base import Images, Pixels
from tune_speed.data.loaders import image_ops
from tune_speed.data.loaders.base import Batches, Loader, Planned

PIECE = 1024


class ResidentLoader(Loader):
    """Gathers batches from a uint8 copy of the set on the device; see `Resident`."""

    def __init__(self, pixels: Pixels, batches: Batches) -> None:
        super().__init__(batches)
        self._pixels: Tensor | None = on_device(pixels, batches.device)

    def planned(self, epoch: int, *, skip: int = 0) -> Iterator[Planned]:
        for table in self._batches.plans(epoch, skip=skip):
            yield Planned(self._make, table)

    def dummy(self, size: int) -> Planned:
        return Planned(self._make, self._batches.dummy_plan(size))

    def _make(self, table: Tensor) -> tuple[Tensor, Tensor]:
        assert self._pixels is not None, "the loader is closed"
        return self._batches.make(self._pixels, table, whole=True)

    def close(self) -> None:
        self._pixels = None


def on_device(pixels: Pixels, device: torch.device) -> Tensor:
    """Returns the pixels as a tensor on the device, (N, H, W, C); on a CPU they may be shared."""
    if isinstance(pixels, np.ndarray) and pixels.flags.writeable:
        return torch.from_numpy(np.ascontiguousarray(pixels)).to(device)
    # What is mapped from the cache goes there piece by piece, without a second copy on the host;
    # and it is read-only: torch warns if it gets to share such memory.
    there = torch.empty(pixels.shape, dtype=torch.uint8, device=device)
    for start in range(0, len(pixels), PIECE):
        there[start : start + PIECE].copy_(torch.from_numpy(pixels[start : start + PIECE].copy()))
    return there


class HeldImages(NamedTuple):
    """Images and their labels on the device."""

    pixels: Tensor
    """uint8, (N, H, W, C)."""
    labels: Tensor
    """int64, (N,)."""


def hold(images: Images, device: torch.device) -> HeldImages:
    """Returns the images on the device, for several evaluations; on a CPU they may be shared."""
    return HeldImages(
        on_device(images.pixels, device), torch.from_numpy(images.labels.copy()).to(device)
    )


def eval_batches(
    images: Images | HeldImages,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    batch_size: int,
    device: torch.device,
    channels_last: bool,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields float32 (B, C, H, W), normalised, and labels (B,) int64, in the images' order."""
    _, height, width, _ = images.pixels.shape
    normalize = image_ops.Normalizer(mean, std, height * width, device)
    for start in range(0, len(images.labels), batch_size):
        some = slice(start, start + batch_size)
        if isinstance(images, HeldImages):
            pixels, labels = images.pixels[some], images.labels[some]
        else:
            pixels, labels = (
                torch.from_numpy(array[some].copy()).to(device, non_blocking=True)
                for array in images[:2]
            )
        yield image_ops.to_channels_first(normalize(pixels), channels_last=channels_last), labels
