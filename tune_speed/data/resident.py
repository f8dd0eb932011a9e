"""The loader that keeps the whole set on the device."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tune_speed.data.batches import Batches
from tune_speed.data.orders import Order


class ResidentLoader:
    """Gathers batches from a uint8 copy of the set on the device; see `Resident`."""

    def __init__(self, pixels: NDArray[np.uint8], batches: Batches) -> None:
        self.num_samples = batches.num_samples
        self._batches = batches
        self._pixels: Tensor | None = _on_device(pixels, batches.device)

    def num_in(self, epoch: int) -> int:
        """Returns the samples of epoch number `epoch`."""
        return self._batches.order.num_in(epoch)

    def reorder(self, order: Order) -> None:
        """Gives the epochs from now on another order of the same batch size."""
        self._batches.reorder(order)

    def epoch(self, epoch: int, *, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the batches of epoch number `epoch`, from number `skip` on."""
        for plan in self._batches.plans(epoch, skip=skip):
            assert self._pixels is not None, "the loader is closed"
            yield self._batches.images(self._pixels, plan.indices, plan), plan.labels

    def close(self) -> None:
        """Gives the device's memory back."""
        self._pixels = None


def _on_device(pixels: NDArray[np.uint8], device: torch.device) -> Tensor:
    # Pixels mapped from the cache are read-only; torch warns if it gets to share such memory.
    writable = pixels if pixels.flags.writeable else pixels.copy()
    return torch.from_numpy(np.ascontiguousarray(writable)).to(device)
