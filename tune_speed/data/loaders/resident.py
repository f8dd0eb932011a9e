"""The loader that keeps the whole set on the device."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tune_speed.data.base import Pixels
from tune_speed.data.loaders.base import Loader, Planned
from tune_speed.data.loaders.batches import Batches

PIECE = 1024
"""Images that go to the device at a time."""


class ResidentLoader(Loader):
    """Gathers batches from a uint8 copy of the set on the device; see `Resident`."""

    def __init__(self, pixels: Pixels, batches: Batches) -> None:
        super().__init__(batches)
        self._pixels: Tensor | None = on_device(pixels, batches.device)

    def planned(self, epoch: int, *, skip: int = 0) -> Iterator[Planned]:
        """Yields the batches of epoch number `epoch`, from number `skip` on."""
        for table in self._batches.plans(epoch, skip=skip):
            yield Planned(self._make, table)

    def dummy(self, size: int) -> Planned:
        """Returns a batch of the first images."""
        return Planned(self._make, self._batches.dummy_plan(size))

    def _make(self, table: Tensor) -> tuple[Tensor, Tensor]:
        assert self._pixels is not None, "the loader is closed"
        return self._batches.make(self._pixels, table, whole=True)

    def close(self) -> None:
        """Gives the device's memory back."""
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
