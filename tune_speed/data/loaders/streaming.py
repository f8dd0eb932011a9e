"""The loader that streams batches from host memory to the device, one ahead of the one in use."""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tune_speed.data.base import EncodedRows
from tune_speed.data.boxes import Gather, gather
from tune_speed.data.loaders.base import Batches, Loader, Planned
from tune_speed.data.loaders.worker_pool import WorkerPool
from tune_speed.data.orders import Order
from tune_speed.data.workers import DecodingThreads

# On CUDA a copy runs on a stream of its own while the device computes on the batch before. On a CPU
# torch's streams and events do nothing, and a batch is there when it is gathered.


Fill = Callable[[NDArray[np.uint8]], int]
"""Puts the pixels of the next batch in the first places of the given room, (B, H, W, C), and
returns how many images these are; 0: there is no batch left."""

# One is copied from while the next one is filled.
NUM_BUFFERS = 2


class _Buffer(NamedTuple):
    host: Tensor
    copied: Any
    """Event: the last copy from it is done."""


class Staging:
    """Buffers on the host, allocated once, and the stream that copies from them."""

    def __init__(self, shape: tuple[int, ...], *, device: torch.device, is_pinned: bool) -> None:
        """Allocates buffers for batches of at most `shape` (B, H, W, C), page-locked on request."""
        self._device, self.image_shape = device, shape[1:]
        self._module: Any = torch.get_device_module(device)
        self._stream = self._module.Stream(device)
        self._buffers = [
            _Buffer(
                torch.empty(shape, dtype=torch.uint8, pin_memory=is_pinned), self._module.Event()
            )
            for _ in range(NUM_BUFFERS)
        ]

    def ahead(self, fill: Fill) -> Iterator[Tensor]:
        """Yields batches (B, H, W, C) on the device, valid until the next; one call at a time."""
        buffers = itertools.cycle(self._buffers)
        batch = self._send(next(buffers), fill)
        while batch is not None:
            following = self._send(next(buffers), fill)
            pixels, copied = batch
            # What is launched from now on waits for the pixels; the host does not.
            computing = self._module.current_stream(self._device)
            computing.wait_event(copied)
            if pixels.is_cuda:
                # The memory is the copying stream's, which may have it back once this one is done.
                pixels.record_stream(computing)
            yield pixels
            batch = following

    def _send(self, buffer: _Buffer, fill: Fill) -> tuple[Tensor, Any] | None:
        buffer.copied.synchronize()
        size = fill(buffer.host.numpy())
        if not size:
            return None
        with self._module.stream(self._stream):
            pixels = buffer.host[:size].to(self._device, non_blocking=True)
            buffer.copied.record(self._stream)
        return pixels, buffer.copied


class LocalSource:
    """Batches gathered on request, in this process; encoded ones are decoded by its threads."""

    _batches: Iterator[NDArray[np.int64]] = iter(())

    def __init__(self, pixels: NDArray[np.uint8] | EncodedRows) -> None:
        self._gather: Gather
        self.close: Callable[[], None]
        if isinstance(pixels, EncodedRows):
            threads = DecodingThreads(pixels)
            self._gather, self.close = threads.gather, threads.close
        else:
            self._gather, self.close = partial(gather, pixels), self.stop

    def begin(self, batches: Iterator[NDArray[np.int64]]) -> None:
        """Gathers `batches`, the indices of each, from now on."""
        self._batches = batches

    def stop(self) -> None:
        """Does nothing."""

    def fill(self, room: NDArray[np.uint8]) -> int:
        """Puts the next batch in the first places of `room`; returns its size, or 0."""
        indices = next(self._batches, None)
        return 0 if indices is None else len(self._gather(indices, room))


class StreamingLoader(Loader):
    """Brings batches of uint8 to the device and makes images of them there; see `Streaming`."""

    # With persistent workers one endless stream runs through all epochs: they already gather the
    # next one while the last batches of an epoch, or an evaluation, keep the device busy.
    def __init__(
        self,
        source: LocalSource | WorkerPool,
        staging: Staging,
        batches: Batches,
        *,
        is_persistent: bool,
        rows: NDArray[np.int64] | None = None,
    ) -> None:
        """Begins epoch 0; `rows` (N,) are the images' places in `source`, None: the same."""
        super().__init__(batches)
        self._source, self._staging = source, staging
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
        """Yields batches, one epoch at a time. Raises: DataError if a worker does not deliver."""
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
