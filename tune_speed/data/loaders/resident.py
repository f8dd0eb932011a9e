"""The loader that keeps the whole set on the device, and batches for evaluation."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tune_speed.core.errors import DataError
from tune_speed.core.words import Note, NoteKind
from tune_speed.data.augmentation.crops import centred
from tune_speed.data.base import EncodedRows, Images, Pixels
from tune_speed.data.loaders import image_ops
from tune_speed.data.loaders.base import Batches, Loader, Planned
from tune_speed.data.workers import pieces
from tune_speed.runtime.device import GIB, free_bytes, is_out_of_memory

PIECE = 1024
SET_SHARE = {"cuda": 0.4, "cpu": 0.5}
"""Of the free memory, that images may take where a training needs the rest."""


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
    for start, piece in zip(count(0, PIECE), pieces(pixels, PIECE), strict=False):
        there[start : start + PIECE].copy_(torch.from_numpy(piece))
    return there


def needed_bytes(images: Images, device: torch.device) -> int:
    """Returns what a copy of the pixels takes on the device: 0 where it would be none."""
    pixels = images.pixels
    is_shared = isinstance(pixels, np.ndarray) and pixels.flags.writeable
    return 0 if is_shared and device.type == "cpu" else math.prod(pixels.shape)


def has_room(images: Sequence[Images], device: torch.device) -> bool:
    """Returns whether all of these fit on the device with room for a training."""
    needed = sum(needed_bytes(each, device) for each in images)
    return needed <= SET_SHARE[device.type] * free_bytes(device)


def way_to_feed(images: Sequence[Images], device: torch.device) -> Note:
    """Returns which way feeds a training, all of `images` with `resident`, and the figures why."""
    set_bytes = sum(math.prod(each.pixels.shape) for each in images)
    figures = {
        "set_gib": set_bytes / GIB,
        "free_gib": free_bytes(device) / GIB,
        "share": SET_SHARE[device.type],
    }
    if has_room(images, device):
        return Note.of(NoteKind.LOADER, way="resident", **figures)
    if isinstance(images[0].pixels, EncodedRows):
        return Note.of(NoteKind.LOADER, way="encoded", **figures)
    host_bytes = free_bytes(torch.device("cpu"))
    host_gib = host_bytes / GIB if set_bytes > host_bytes else None
    return Note.of(NoteKind.LOADER, way="mapped", host_gib=host_gib, **figures)


def fitting(open_one: Callable[[], Loader], images: Images, device: torch.device) -> Loader:
    """Returns what opens with a copy of the images. Raises: DataError if memory is too small."""
    # Not an error of memory, or caused by one: smaller batches would not help.
    needed, free = needed_bytes(images, device), free_bytes(device)
    if needed <= free:
        try:
            return open_one()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        free = free_bytes(device)
    raise DataError(
        f"The training images must fit on {device} for `loader: resident`, but take"
        f" {needed / GIB:.3g} GiB, and {free / GIB:.3g} GiB are free for this process. Set `loader:"
        " auto`, or `dataloader`, which brings each batch from the host."
    )


class HeldImages(NamedTuple):
    """Images and their labels on the device."""

    pixels: Tensor
    """uint8, (N, H, W, C)."""
    labels: Tensor
    """int64 (N,), or float32 (N, K)."""
    sizes: NDArray[np.int64] | None = None
    """Height and width of each image, (N, 2), on the host; None: all fill their boxes."""


def hold(images: Images, device: torch.device) -> HeldImages:
    """Returns the images on the device, for several evaluations; on a CPU they may be shared."""
    labels = torch.from_numpy(images.labels.copy()).to(device)
    return HeldImages(on_device(images.pixels, device), labels, images.sizes)


class View(NamedTuple):
    """How evaluation shows images to the network."""

    mean: tuple[float, ...]
    """Of each channel, pixels in [0, 1]."""
    std: tuple[float, ...]
    channels_last: bool = True
    image_size: int | None = None
    """Height and width [pixels]; None: those of the stored images."""
    crop_pct: float = 1.0
    """Share of the short side that is shown, in (0, 1]."""


def eval_batches(
    images: Images | HeldImages, view: View, *, batch_size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields float32 (B, C, H, W), normalised, and the labels (B,) or (B, K), in their order."""
    show = Showing(view, images.pixels.shape[1:3], device)
    come = iter(()) if isinstance(images, HeldImages) else pieces(images.pixels, batch_size)
    for start in range(0, len(images.labels), batch_size):
        some = slice(start, start + batch_size)
        if isinstance(images, HeldImages):
            pixels, labels = images.pixels[some], images.labels[some]
        else:
            pixels, labels = (
                torch.from_numpy(array).to(device, non_blocking=True)
                for array in (next(come), images.labels[some].copy())
            )
        yield show(pixels, None if images.sizes is None else images.sizes[some]), labels


class Showing:
    """Makes what the network sees in an evaluation of stored images."""

    def __init__(self, view: View, box: Sequence[int], device: torch.device) -> None:
        """Takes the height and width of the stored images' boxes."""
        height, width = box
        self._view, self._box = view, (height, width)
        side = view.image_size
        self._size = self._box if side is None else (side, side)
        num_pixels = self._size[0] * self._size[1]
        self._normalize = image_ops.Normalizer(view.mean, view.std, num_pixels, device)

    def __call__(self, pixels: Tensor, sizes: NDArray[np.int64] | None) -> Tensor:
        """Returns float32 (B, C, H, W) of uint8 (B, H', W', C) of sizes (B, 2), None: whole."""
        images = self._normalize(self.windows(pixels, sizes))
        return image_ops.to_channels_first(images, channels_last=self._view.channels_last)

    def windows(self, pixels: Tensor, sizes: NDArray[np.int64] | None) -> Tensor:
        """Returns the same as uint8 (B, H, W, C), not normalised."""
        if sizes is not None or self._size != self._box or self._view.crop_pct != 1:
            if sizes is None:
                sizes = np.array([self._box] * len(pixels), dtype=np.int64)
            windows = torch.from_numpy(centred(sizes, crop_pct=self._view.crop_pct))
            pixels = image_ops.cut(pixels, windows.to(pixels.device), self._size)
        return pixels
