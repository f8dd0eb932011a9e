"""The loaders as recipes name them: from settings to an opened loader; imported without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from tune_speed.core.config import Config
from tune_speed.data.base import Images, Pixels, whole_of

if TYPE_CHECKING:
    from tune_speed.data.loaders.base import Batches, Batching, Loader


class LoaderConfig(Config):
    """Base of the loaders."""

    def open(self, images: Images, batching: Batching) -> Loader:
        """Returns a loader of `images`, to be closed. Raises: ConfigError if they are too small."""
        from tune_speed.data.loaders.base import Batches

        return self.open_batches(images.pixels, Batches(images, batching))

    def open_batches(self, pixels: Pixels, batches: Batches) -> Loader:
        """Returns the loader that brings `pixels` (N, H, W, C) to `batches`."""
        raise NotImplementedError


class Streaming(LoaderConfig):
    """Batches from host memory, gathered ahead by worker processes and augmented on the device.

    For sets that do not fit on the device; for others `resident` is quicker. One batch is always on
    its way to the device while the one before is computed on, from two buffers that are used again
    and again. The settings are those of torch's `DataLoader`. Batches travel as uint8, a fourth of
    what floats would take. Augmenting in the workers instead was no quicker: pad-crop, flip and
    cutout cost 7 µs of the 3,400 µs that ResNet-20 takes for an image of 32x32 pixels (one core of
    an AMD EPYC, batches of 128).
    """

    workers: Annotated[int, Field(ge=0, le=256)] | Literal["auto"] = 0
    """Worker processes; 0: batches are gathered in the training process. `auto`: before training,
    the smallest number is measured with which steps wait for less than 5 % of the time."""
    pin_memory: bool = True
    """Put batches in page-locked memory, from where a GPU copies them while it computes. Not
    applicable, and without effect, where the device is no GPU."""
    prefetch_factor: int = Field(default=2, ge=1, le=256)
    """Batches that each worker keeps ready; not applicable without workers, and measured too with
    `workers: auto`."""
    persistent_workers: bool = True
    """Keep the workers from epoch to epoch; they then work ahead into the next one."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Longest wait for a worker [s]; then it is taken to hang, which is an error."""

    def open_batches(self, pixels: Pixels, batches: Batches) -> Loader:
        from tune_speed.data.loaders.streaming import LocalSource, Staging, StreamingLoader
        from tune_speed.data.loaders.worker_pool import WorkerPool

        assert self.workers != "auto", "workers: auto is resolved before training"
        whole, rows = whole_of(pixels)
        staging = Staging(
            (batches.order.batch_size, *whole.shape[1:]),
            device=batches.device,
            is_pinned=self.pin_memory and batches.device.type == "cuda",
        )
        source: LocalSource | WorkerPool = LocalSource(whole)
        if self.workers:
            source = WorkerPool(
                whole,
                batches.order.batch_size,
                workers=self.workers,
                prefetch_factor=self.prefetch_factor,
                timeout_s=self.timeout_s,
            )
        return StreamingLoader(
            source, batches, staging, is_persistent=self.persistent_workers, rows=rows
        )


class Resident(LoaderConfig):
    """The whole set as uint8 on the device, where batches are gathered and augmented."""

    def open_batches(self, pixels: Pixels, batches: Batches) -> Loader:
        from tune_speed.data.loaders.resident import ResidentLoader

        return ResidentLoader(pixels, batches)
