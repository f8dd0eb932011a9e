"""Batches of pixels on their way to the device, one ahead of the one that is computed on."""

# On CUDA a copy runs on a stream of its own while the device computes on the batch before. On a CPU
# torch's streams and events do nothing, and a batch is there when it is gathered.

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
        """Yields batches on the device, uint8 (B, H, W, C), each once the next one is under way.

        A batch is valid until the next one is requested. One call at a time: an earlier one is over
        when a new one begins.
        """
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
        """Begins to copy the next batch, and returns it with the event of its arrival."""
        buffer.copied.synchronize()
        size = fill(buffer.host.numpy())
        if not size:
            return None
        with self._module.stream(self._stream):
            pixels = buffer.host[:size].to(self._device, non_blocking=True)
            buffer.copied.record(self._stream)
        return pixels, buffer.copied
