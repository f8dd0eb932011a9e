"""The loaders as recipes name them: from settings to an opened loader; imported without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from tune_speed.core.config import Config
from tune_speed.core.words import Note
from tune_speed.data.base import EncodedRows, Images, Pixels, whole_of

if TYPE_CHECKING:
    import torch

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
    """Worker processes, which gather images, and decode those that are stored as JPEG; 0: the
    training process gathers, and decodes by threads. `auto`: before training, the smallest number
    is measured with which steps wait for less than 5 % of the time."""
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

        assert self.workers != "auto", "it is settled before training"
        whole, rows = (pixels, pixels.rows) if isinstance(pixels, EncodedRows) else whole_of(pixels)
        more: dict[str, Any] = {"is_persistent": self.persistent_workers, "rows": rows}
        batch_size = batches.order.batch_size
        is_pinned = self.pin_memory and batches.device.type == "cuda"
        shape = (batch_size, *whole.shape[1:])
        staging = Staging(shape, device=batches.device, is_pinned=is_pinned)
        if not self.workers:
            return StreamingLoader(LocalSource(whole), staging, batches, **more)
        ahead = self.model_dump(include={"workers", "prefetch_factor", "timeout_s"})
        return StreamingLoader(WorkerPool(whole, batch_size, **ahead), staging, batches, **more)


class Resident(LoaderConfig):
    """The whole set as uint8 on the device, where batches are gathered and augmented.

    A set that does not fit there is refused.
    """

    def open(self, images: Images, batching: Batching) -> Loader:
        """Returns a loader of `images`.

        Raises: ConfigError if they are too small; DataError if they do not fit on the device.
        """
        from tune_speed.data.loaders.resident import fitting

        return fitting(
            lambda: super(Resident, self).open(images, batching), images, batching.device
        )

    def open_batches(self, pixels: Pixels, batches: Batches) -> Loader:
        from tune_speed.data.loaders.resident import ResidentLoader

        return ResidentLoader(pixels, batches)


class Dummy(Resident):
    """The same for images that are made for a batch: where memory ends, a smaller one may fit."""

    def open(self, images: Images, batching: Batching) -> Loader:
        return LoaderConfig.open(self, images, batching)


class Automatic(LoaderConfig):
    """The way that the set's size allows, chosen before training; the record says which and why.

    `resident` where the pixels of the training part and of the one that evaluates take at most 40 %
    of the memory that a trial has on its GPU, or on a CPU 50 % of the free memory; there a set that
    is in memory already is used as it is. Else `dataloader` with `workers: auto`: pixels come from
    the cache's file, whose pages all processes share (`mapped`), or, of a set that is stored as
    JPEG, are decoded in each epoch (`encoded`).
    """

    def open(self, images: Images, batching: Batching) -> Loader:
        loader, _ = self.chosen([images], batching.device)
        return loader.open(images, batching)

    def chosen(self, images: Sequence[Images], device: torch.device) -> tuple[LoaderConfig, Note]:
        """Returns the loader for the first of `images`, the training part, and why it is that one.

        `resident` keeps the others on the device too, so that all must fit.
        """
        from tune_speed.data.loaders.resident import way_to_feed

        note = way_to_feed(images, device)
        return Resident() if note.figures["way"] == "resident" else Streaming(), note
