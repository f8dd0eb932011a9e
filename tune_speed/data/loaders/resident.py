"""The loader that keeps the whole set on the device."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tune_speed.data.base import Pixels
from tune_speed.data.loaders.base import Loader
from tune_speed.data.loaders.batches import Batches

PIECE = 1024
"""Images that go to the device at a time."""


class ResidentLoader(Loader):
    """Gathers batches from a uint8 copy of the set on the device; see `Resident`."""

    def __init__(self, pixels: Pixels, batches: Batches) -> None:
        super().__init__(batches)
        self._pixels: Tensor | None = on_device(pixels, batches.device)

    def epoch(self, epoch: int, *, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the batches of epoch number `epoch`, from number `skip` on."""
        for plan in self._batches.plans(epoch, skip=skip):
            assert self._pixels is not None, "the loader is closed"
            yield self._batches.images(self._pixels, plan.indices, plan), plan.labels

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
