"""The loader whose batches are gathered by worker processes, through torch's `DataLoader`.

Workers deliver whole batches of uint8 pixels; normalising and augmenting happen on the device, in
the same code as for the resident loader.
"""

import itertools
import time
import warnings
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from tune_speed.data.batches import Batches
from tune_speed.data.shared_pixels import SharedPixels
from tune_speed.errors import DataError

POLL_S = 5.0
"""How often a loader that waits looks whether its workers are alive."""


class WorkerLoader:
    """Reads batches ahead of the training; see `TorchDataLoader`.

    With persistent workers one endless stream runs through all epochs: workers already read the
    next one while the last batches of an epoch, or an evaluation, keep the device busy.
    """

    def __init__(
        self,
        pixels: NDArray[np.uint8],
        batches: Batches,
        *,
        workers: int,
        pin_memory: bool,
        prefetch_factor: int,
        persistent_workers: bool,
        timeout_s: float,
    ) -> None:
        self.num_samples = batches.num_samples
        self._batches = batches
        self._persistent_workers = persistent_workers
        self._timeout_s = timeout_s
        self._shared = SharedPixels(pixels) if workers else None
        self._options: dict[str, Any] = {
            "dataset": _PixelBatches(self._shared or pixels),
            "batch_size": None,  # the sampler's items are whole batches
            "pin_memory": pin_memory and batches.device.type == "cuda",
            "num_workers": workers,
        }
        if workers:
            self._options |= {
                "multiprocessing_context": _context(),
                "prefetch_factor": prefetch_factor,
                "timeout": min(POLL_S, timeout_s),
            }
        self._stream: Iterator[Tensor] | None = None
        self._first: Tensor | None = None
        self._next_epoch = -1
        self._is_closed = False
        self._start(0)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the batches of epoch number `epoch`; one epoch at a time.

        Epochs that do not follow one another, or were left before their end, restart the workers.

        Raises:
            DataError: A worker died, or delivered nothing for `timeout_s`.
        """
        if epoch != self._next_epoch:
            self._stop()
            self._start(epoch)
        self._next_epoch = -1
        stream = self._stream
        for plan in self._batches.plans(epoch):
            assert self._stream is stream is not None, "closed, or another epoch was begun"
            pixels = self._fetch().to(self._batches.device, non_blocking=True)
            positions = torch.arange(len(pixels), device=pixels.device)
            yield self._batches.images(pixels, positions, plan), plan.labels
        if self._persistent_workers:
            self._next_epoch = epoch + 1
        else:
            self._stop()

    def close(self) -> None:
        """Ends the workers and waits for them."""
        self._stop()
        if self._shared is not None:
            self._shared.close()
        self._shared, self._is_closed = None, True

    def _start(self, epoch: int) -> None:
        """Starts the workers and waits for the first batch: their start is no training time."""
        assert not self._is_closed, "the loader is closed"
        last = None if self._persistent_workers else epoch + 1
        with warnings.catch_warnings():
            # Torch counts the machine's cores; a trial's share of them is the search's business.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            loader = DataLoader(sampler=_BatchOrder(self._batches, epoch, last), **self._options)
            self._stream = iter(loader)
        self._next_epoch, self._first = epoch, self._fetch()

    def _fetch(self) -> Tensor:
        """Returns the next batch of pixels (B, H, W, C)."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        assert self._stream is not None
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return next(self._stream)
            except RuntimeError as error:
                # Torch gives up after POLL_S; a worker that is alive may go on until the deadline.
                if "timed out" in str(error) and time.monotonic() < deadline:
                    continue
                self._kill()
                raise DataError(
                    f"The loader's worker processes must deliver a batch within"
                    f" {self._timeout_s:g} s, but: {error}. Their own messages stand above. A"
                    " worker that was killed may have lacked memory or space in /dev/shm: try fewer"
                    " `workers`, or the `resident` loader."
                ) from error

    def _stop(self) -> None:
        stream, self._stream, self._first, self._next_epoch = self._stream, None, None, -1
        if isinstance(stream, _MultiProcessingDataLoaderIter):
            # It would do so when it is collected; but a traceback may keep it alive.
            stream._shutdown_workers()

    def _kill(self) -> None:
        """Ends workers that may not listen any more."""
        if isinstance(self._stream, _MultiProcessingDataLoaderIter):
            for worker in self._stream._workers:
                worker.kill()
        self._stop()


class _PixelBatches(Dataset[Tensor]):
    """Batches of a set by their images' indices."""

    def __init__(self, pixels: NDArray[np.uint8] | SharedPixels) -> None:
        self._pixels = pixels

    def __getitem__(self, indices: NDArray[np.int64]) -> Tensor:
        assert isinstance(self._pixels, np.ndarray)  # shared pixels arrive as an array
        return torch.from_numpy(self._pixels.take(indices, axis=0))


class _BatchOrder(Sampler[NDArray[np.int64]]):
    """The indices of each batch, from epoch `first` up to `last`, exclusive; None: without end."""

    def __init__(self, batches: Batches, first: int, last: int | None) -> None:
        self._batches = batches
        self._epochs = itertools.count(first) if last is None else range(first, last)

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        for epoch in self._epochs:
            yield from self._batches.indices(epoch)


def _context() -> BaseContext:
    """Returns a way to start workers that is safe beside torch's threads, and quick.

    A fork of this process could inherit locks that its threads hold. The fork server has no threads
    and imports torch once, so that workers start in some 20 ms, not in the seconds of `spawn`.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])
    return context
