"""The loader that streams batches from host memory to the device."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tune_speed.data.loaders.base import Batches, Loader, Planned
from tune_speed.data.loaders.gather_worker import gather
from tune_speed.data.loaders.staging import Staging
from tune_speed.data.loaders.worker_pool import WorkerPool
from tune_speed.data.orders import Order


class LocalSource:
    """Batches gathered on request, in this process."""

    def __init__(self, pixels: NDArray[np.uint8]) -> None:
        self._pixels = pixels
        self._batches: Iterator[NDArray[np.int64]] = iter(())

    def begin(self, batches: Iterator[NDArray[np.int64]]) -> None:
        """Gathers `batches`, the indices of each, from now on."""
        self._batches = batches

    def fill(self, room: NDArray[np.uint8]) -> int:
        """Puts the next batch in the first places of `room`; returns its size, or 0."""
        indices = next(self._batches, None)
        return 0 if indices is None else len(gather(self._pixels, indices, room))

    def stop(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class StreamingLoader(Loader):
    """Brings batches of uint8 to the device and makes images of them there; see `Streaming`."""

    # With persistent workers one endless stream runs through all epochs: they already gather the
    # next one while the last batches of an epoch, or an evaluation, keep the device busy.
    def __init__(
        self,
        source: LocalSource | WorkerPool,
        batches: Batches,
        staging: Staging,
        *,
        is_persistent: bool,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """Begins to gather the first epoch.

        `rows` (N,) says where the images of `batches` are among those of `source`; None: at the
        same places.
        """
        super().__init__(batches)
        self._source = source
        self._staging = staging
        self._rows = rows
        self._is_persistent = is_persistent
        self._is_closed = False
        self._next_epoch = -1
        self._arriving: Iterator[Tensor] = iter(())
        try:
            # Starting workers is no training time.
            self._begin(0)
        except BaseException:
            self.close()
            raise

    def reorder(self, order: Order) -> None:
        super().reorder(order)
        self._begin(0)

    def planned(self, epoch: int, *, skip: int = 0) -> Iterator[Planned]:
        """Yields the batches of epoch number `epoch`, from `skip` on; one epoch at a time.

        Raises: DataError if a worker died, failed, or did not deliver in time.
        """
        if epoch != self._next_epoch or skip:
            self._begin(epoch, skip=skip)
        self._next_epoch = -1
        for table in self._batches.plans(epoch, skip=skip):
            assert not self._is_closed, "the loader is closed"
            yield Planned(self._make, next(self._arriving), table)
        if self._is_persistent:
            self._next_epoch = epoch + 1
        else:
            self._source.stop()

    def dummy(self, size: int) -> Planned:
        """Returns a batch of images of a pattern, no two alike."""
        shape, device = (size, *self._staging.image_shape), self._batches.device
        # 251 is no factor of an image's size.
        pixels = (torch.arange(math.prod(shape), device=device) % 251).to(torch.uint8).view(shape)
        return Planned(self._make, pixels, self._batches.dummy_plan(size))

    def _make(self, pixels: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        return self._batches.make(pixels, table, whole=False)

    def close(self) -> None:
        if not self._is_closed:
            self._source.close()
        self._is_closed = True

    def _begin(self, epoch: int, *, skip: int = 0) -> None:
        assert not self._is_closed, "the loader is closed"
        first = self._batches.indices(epoch, skip=skip)
        later = itertools.count(epoch + 1) if self._is_persistent else ()
        indices = itertools.chain(first, (b for n in later for b in self._batches.indices(n)))
        rows = self._rows
        self._source.begin(indices if rows is None else (rows.take(b) for b in indices))
        self._arriving = self._staging.ahead(self._source.fill)
        self._next_epoch = epoch
