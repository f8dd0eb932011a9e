"""Loaders: what turns the training part into batches on the device, and what both share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tune_speed.data.augment import Augmentation, draw_in_order
from tune_speed.data.loaders import image_ops
from tune_speed.data.orders import WHOLE, Order, Share

Make = Callable[..., tuple[Tensor, Tensor]]
Batch: TypeAlias = "Planned | tuple[Tensor, Tensor]"
"""Images (B, C, H, W) and labels (B,), made or to be made."""


class Planned:
    """A batch that is not made yet: unpacked, it becomes (images, labels)."""

    def __init__(self, make: Make, *tensors: Tensor) -> None:
        self.make, self.tensors = make, tensors

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.make(*self.tensors))


def made_from(batch: Batch) -> tuple[Make, tuple[Tensor, ...]]:
    """Returns what makes a batch, and of which tensors: of one that is there, its own."""
    return (batch.make, batch.tensors) if isinstance(batch, Planned) else (_as_it_is, batch)


def _as_it_is(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return images, labels


class BatchPlan(NamedTuple):
    """What one batch is made of, on the device: int64, (B,) each."""

    indices: Tensor
    labels: Tensor
    shift_y: Tensor
    shift_x: Tensor
    is_flipped: Tensor
    affine: Tensor
    corner_y: Tensor
    corner_x: Tensor


class Batching(NamedTuple):
    """How images become batches."""

    order: Order
    """Of their batch size, and with the seed of their changes; an epoch's last may be smaller."""
    mean: tuple[float, ...]
    """Of each channel, pixels in [0, 1]."""
    std: tuple[float, ...]
    device: torch.device
    """Where batches come, and are augmented."""
    augmentation: Augmentation = Augmentation()
    channels_last: bool = True
    share: Share = WHOLE


class Batches:
    """The batches of every epoch, but for where the pixels come from."""

    def __init__(
        self, labels: NDArray[np.int64], size: tuple[int, int], batching: Batching
    ) -> None:
        """Takes the labels of images of `size` (H, W)."""
        self.labels, self.size = labels, size
        self.order, self.share = batching.order, batching.share
        self.augmentation, self.device = batching.augmentation, batching.device
        self.channels_last = batching.channels_last
        height, width = size
        mean, std, device = batching.mean, batching.std, batching.device
        self._normalize = image_ops.Normalizer(mean, std, height * width, device)
        pad = batching.augmentation.pad
        self._move = image_ops.Mover(height, width, pad=pad, device=device)

    @property
    def num_samples(self) -> int:
        return len(self.labels)

    def indices(self, epoch: int, *, skip: int = 0) -> Iterator[NDArray[np.int64]]:
        """Yields which images are in each batch of epoch number `epoch`, (B,), from `skip` on."""
        order = self.share.of(self.order.epoch(epoch))
        for start in range(skip * self.order.batch_size, len(order), self.order.batch_size):
            yield order[start : start + self.order.batch_size]

    def reorder(self, order: Order) -> None:
        assert order.batch_size == self.order.batch_size, "loaders have room for one batch size"
        self.order = order

    def plans(self, epoch: int, *, skip: int = 0) -> Iterator[Tensor]:
        """Yields each batch of an epoch, after `skip`, as a `BatchPlan` in one tensor, (8, B)."""
        order = self.order.epoch(epoch)
        draws = draw_in_order(
            self.augmentation,
            order,
            shape=(self.num_samples, *self.size),
            repeats=self.order.repeats,
            seed=self.order.seed,
            epoch=epoch,
        )
        table = torch.from_numpy(self.share.of(np.stack([order, self.labels.take(order), *draws])))
        if self.device.type == "cuda":
            # A copy from pageable memory would wait for the GPU.
            table = table.pin_memory()
        table = table.to(self.device, non_blocking=True)
        for start in range(skip * self.order.batch_size, table.shape[1], self.order.batch_size):
            yield table[:, start : start + self.order.batch_size]

    def dummy_plan(self, size: int) -> Tensor:
        """Returns a plan of the first images, of one class and not moved."""
        plan = torch.zeros((len(BatchPlan._fields), size), dtype=torch.int64, device=self.device)
        plan[0] = torch.arange(size, device=self.device) % self.num_samples
        return plan

    def make(self, pixels: Tensor, table: Tensor, *, whole: bool) -> tuple[Tensor, Tensor]:
        """Makes float32 (B, C, H, W) and labels of the `whole` set's pixels, or the batch's."""
        plan = BatchPlan(*table.unbind())
        side = self.augmentation.cutout
        if self.augmentation.pad or self.augmentation.flip != "none":
            indices = plan.indices if whole else torch.arange(len(pixels), device=pixels.device)
            y, x, is_flipped = plan.shift_y, plan.shift_x, plan.is_flipped
            pixels = self._move(pixels, indices, shift_y=y, shift_x=x, is_flipped=is_flipped)
        elif whole:
            pixels = pixels.index_select(0, plan.indices)
        images = self._normalize(pixels)
        if self.augmentation.affine:
            images = image_ops.change_affinely(images, plan.affine, most=self.augmentation.affine)
        if side:
            image_ops.cut_out(images, side=side, corner_y=plan.corner_y, corner_x=plan.corner_x)
        images = image_ops.to_channels_first(images, channels_last=self.channels_last)
        return images, plan.labels


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
        """Returns the batches of an epoch, from 0, as its order has them, after the first `skip`.

        Images are float32, normalised, (B, C, H, W); labels int64, (B,). The last may be smaller.
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
