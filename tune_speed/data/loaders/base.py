"""Loaders: what turns the training part into batches on the device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias

from pydantic import Field

from tune_speed.core.config import Config
from tune_speed.data.augment import Augmentation
from tune_speed.data.base import Images, Pixels, whole_of
from tune_speed.data.orders.base import Order
from tune_speed.data.orders.share import WHOLE, Share

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tune_speed.data.loaders.batches import Batches

Make: TypeAlias = "Callable[..., tuple[Tensor, Tensor]]"
Batch: TypeAlias = "Planned | tuple[Tensor, Tensor]"
"""Images (B, C, H, W) and labels (B,), made or to be made."""


class Planned:
    """A batch that is not made yet: unpacked, it becomes (images, labels)."""

    def __init__(self, make: Make, *tensors: Tensor) -> None:
        """Takes what makes it from tensors on the device, and these."""
        self.make, self.tensors = make, tensors

    def __iter__(self) -> Iterator[Tensor]:
        """Makes the batch."""
        return iter(self.make(*self.tensors))


def made_from(batch: Batch) -> tuple[Make, tuple[Tensor, ...]]:
    """Returns what makes a batch, and of which tensors: of one that is there, its own."""
    return (batch.make, batch.tensors) if isinstance(batch, Planned) else (_as_it_is, batch)


def _as_it_is(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return images, labels


class Loader(ABC):
    """An opened loader. Batches are (images, labels) on the device."""

    num_samples: int
    """Images of the set; so many come in an epoch, unless its order is a special one."""

    def __init__(self, batches: Batches) -> None:
        self.num_samples, self._batches = batches.num_samples, batches

    def num_in(self, epoch: int) -> int:
        """Returns the samples of epoch number `epoch` over all devices, at least 1."""
        return self._batches.order.num_in(epoch)

    @abstractmethod
    def planned(self, epoch: int, *, skip: int = 0) -> Iterator[Planned]:
        """Returns the batches of `epoch` before their images are made; one at a time is valid."""

    @abstractmethod
    def dummy(self, size: int) -> Planned:
        """Returns a batch of so many images, made as those of `planned`; none is drawn for it."""

    def epoch(self, epoch: int, *, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Returns the batches of epoch number `epoch`, from 0; the last may be smaller.

        The first `skip` are left out, without being gathered.

        Images are float32, normalised, (B, C, H, W); labels int64, (B,). Which images come, and
        how often, is the order's affair.
        """
        for batch in self.planned(epoch, skip=skip):
            images, labels = batch
            yield images, labels

    def reorder(self, order: Order) -> None:
        """Gives the epochs from now on another order of the same batch size; none is under way."""
        self._batches.reorder(order)

    @abstractmethod
    def close(self) -> None:
        """Ends what the loader started, workers included; may be called again."""


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
        from tune_speed.data.loaders.batches import Batches
        from tune_speed.data.loaders.image_ops import Mover, Normalizer
        from tune_speed.data.orders.base import SampleOrder

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


class HeldImages(NamedTuple):
    """Images and their labels on the device."""

    pixels: Tensor
    """uint8, (N, H, W, C)."""
    labels: Tensor
    """int64, (N,)."""


def hold(images: Images, device: torch.device) -> HeldImages:
    """Returns the images on the device, for several evaluations; on a CPU they may be shared."""
    import torch

    from tune_speed.data.loaders.resident import on_device

    return HeldImages(
        on_device(images.pixels, device), torch.from_numpy(images.labels.copy()).to(device)
    )


def eval_batches(
    images: Images | HeldImages,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    batch_size: int,
    device: torch.device,
    channels_last: bool,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the images in their order, normalised and not augmented, as batches on the device.

    Images are float32, (B, C, H, W); labels int64, (B,); the last batch may be smaller.
    """
    import torch

    from tune_speed.data.loaders import image_ops

    _, height, width, _ = images.pixels.shape
    normalize = image_ops.Normalizer(mean=mean, std=std, height=height, width=width, device=device)
    for start in range(0, len(images.labels), batch_size):
        some = slice(start, start + batch_size)
        if isinstance(images, HeldImages):
            pixels, labels = images.pixels[some], images.labels[some]
        else:
            pixels, labels = (
                torch.from_numpy(array[some].copy()).to(device, non_blocking=True)
                for array in images
            )
        yield image_ops.to_channels_first(normalize(pixels), channels_last=channels_last), labels
