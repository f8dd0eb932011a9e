"""The loaders as recipes name them: from settings to an opened loader; imported without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from tune_speed.core.config import Config
from tune_speed.data.augment import Augmentation
from tune_speed.data.base import Images, Pixels, whole_of
from tune_speed.data.orders import WHOLE, Order, Share

if TYPE_CHECKING:
    import torch

    from tune_speed.data.loaders.base import Batches, Loader


class LoaderConfig(Config):
    """Base of the loaders."""

    def open(
        self,
        images: Images,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        batch_size: int,
        augmentation: Augmentation,
        seed: int,
        device: torch.device,
        channels_last: bool,
        order: Order | None = None,
        share: Share = WHOLE,
    ) -> Loader:
        """Returns a loader of `images`, the training part; to be closed.

        Mean and standard deviation are those of each channel, pixels in [0, 1]. The last batch of
        an epoch may be smaller. The seed and the epoch's number fix the order of the images and
        their changes; an `order` of this batch size replaces the new shuffle of each epoch. Batches
        come, and are augmented, on `device`, which takes its `share` of the order.

        Raises: ConfigError if the images are too small for the augmentation.
        """
        from tune_speed.data.loaders.base import Batches
        from tune_speed.data.loaders.image_ops import Mover, Normalizer
        from tune_speed.data.orders import SampleOrder

        assert batch_size >= 1
        _, height, width, _ = images.pixels.shape
        augmentation.check(height, width)
        assert order is None or (order.batch_size, order.seed) == (batch_size, seed)
        batches = Batches(
            images.labels,
            order or SampleOrder(len(images.labels), batch_size, seed),
            height=height,
            width=width,
            normalize=Normalizer(mean=mean, std=std, height=height, width=width, device=device),
            move=Mover(height, width, pad=augmentation.pad, device=device),
            augmentation=augmentation,
            device=device,
            channels_last=channels_last,
            share=share,
        )
        return self.open_batches(images.pixels, batches)

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
        """Returns the loader, with its workers started."""
        from tune_speed.data.loaders.staging import Staging
        from tune_speed.data.loaders.streaming import LocalSource, StreamingLoader
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
        """Returns the loader, with the pixels on the device."""
        from tune_speed.data.loaders.resident import ResidentLoader

        return ResidentLoader(pixels, batches)
