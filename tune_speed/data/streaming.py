"""The loader that streams batches from host memory to the device."""

import itertools
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tune_speed.data.batches import Batches
from tune_speed.data.orders import Order


class Source(Protocol):
    """Where batches of pixels come from: worker processes, or this one."""

    def begin(self, batches: Iterator[NDArray[np.int64]]) -> None:
        """Gathers `batches`, the indices of each, from now on."""

    def next(self) -> NDArray[np.uint8]:
        """Returns the pixels of the next batch, (B, H, W, C), that hold until the next call."""

    def stop(self) -> None:
        """Ends what `begin` started; it may begin anew."""

    def close(self) -> None:
        """Ends it for good."""


class LocalSource:
    """Batches gathered when they are asked for, in this process."""

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        self._pixels = pixels
        self._batches: Iterator[NDArray[np.int64]] = iter(())

    def begin(self, batches: Iterator[NDArray[np.int64]]) -> None:
        """Gathers `batches`, the indices of each, from now on."""
        self._batches = batches

    def next(self) -> NDArray[np.uint8]:
        """Returns the pixels of the next batch, (B, H, W, C)."""
        return self._pixels.take(next(self._batches), axis=0)

    def stop(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class StreamingLoader:
    """Brings batches of uint8 to the device and makes images of them there; see `Streaming`.

    With persistent workers one endless stream runs through all epochs: they already gather the next
    one while the last batches of an epoch, or an evaluation, keep the device busy.
    """

    def __init__(
        self, source: Source, batches: Batches, *, pin_memory: bool, is_persistent: bool
    ) -> None:
        self.num_samples = batches.num_samples
        self._source = source
        self._batches = batches
        self._pin_memory = pin_memory and batches.device.type == "cuda"
        self._is_persistent = is_persistent
        self._is_closed = False
        self._next_epoch = -1
        try:
            self._begin(0)  # starting workers is no training time
        except BaseException:
            self.close()
            raise

    def num_in(self, epoch: int) -> int:
        """Returns the samples of epoch number `epoch`."""
        return self._batches.order.num_in(epoch)

    def reorder(self, order: Order) -> None:
        """Gives the epochs from now on another order of the same batch size."""
        self._batches.reorder(order)
        self._begin(0)

    def epoch(self, epoch: int, *, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the batches of epoch number `epoch`, from `skip` on; one epoch at a time.

        Raises:
            DataError: A worker died, failed, or did not deliver in time.
        """
        if epoch != self._next_epoch or skip:
            self._begin(epoch, skip=skip)
        self._next_epoch = -1
        for plan in self._batches.plans(epoch, skip=skip):
            assert not self._is_closed, "the loader is closed"
            pixels = self._on_device(torch.from_numpy(self._source.next()))
            positions = torch.arange(len(pixels), device=pixels.device)
            yield self._batches.images(pixels, positions, plan), plan.labels
        if self._is_persistent:
            self._next_epoch = epoch + 1
        else:
            self._source.stop()

    def close(self) -> None:
        """Ends the workers and waits for them."""
        if not self._is_closed:
            self._source.close()
        self._is_closed = True

    def _begin(self, epoch: int, *, skip: int = 0) -> None:
        assert not self._is_closed, "the loader is closed"
        first = self._batches.indices(epoch, skip=skip)
        later = itertools.count(epoch + 1) if self._is_persistent else ()
        self._source.begin(
            itertools.chain(first, (b for number in later for b in self._batches.indices(number)))
        )
        self._next_epoch = epoch

    def _on_device(self, pixels: Tensor) -> Tensor:
        if self._pin_memory:
            return pixels.pin_memory().to(self._batches.device, non_blocking=True)
        return pixels.to(self._batches.device)
