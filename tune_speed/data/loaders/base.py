"""Loaders: what turns the training part into batches on the device, and what both share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tune_speed.core.errors import ConfigError
from tune_speed.data.augmentation.base import Drawer
from tune_speed.data.augmentation.config import WINDOW, Augmentation, draw, draw_in_order
from tune_speed.data.augmentation.crops import Centre
from tune_speed.data.augmentation.mix import mixed
from tune_speed.data.base import Images
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
    image_size: int | None = None
    """Height and width that the network sees [pixels]; None: those of the stored images."""
    num_classes: int = 0
    """Needed where images are mixed."""


class Batches:
    """The batches of every epoch, but for where the pixels come from."""

    def __init__(self, images: Images, batching: Batching) -> None:
        """Raises: ConfigError if the images are too small, or their one size is not known."""
        _, height, width, _ = images.pixels.shape
        self.labels = images.labels
        self.order, self.share = batching.order, batching.share
        self.augmentation, self.device = batching.augmentation, batching.device
        self._drawer = _drawer_of(images, batching)
        self._box = (height, width)
        self.augmentation.check(self._drawer.height, self._drawer.width)
        self._batching = batching
        sizes = None if self._drawer.sizes is None else self._drawer.sizes[:1]
        one = self._drawer._replace(num_images=1, sizes=sizes)
        self._names = ("indices", "labels", *draw(self.augmentation, one))
        self._tools = dict[tuple[int, int], _Tools]()
        self._set_size(self._drawer.height, self._drawer.width)
        targets = None if self.labels.ndim == 1 else self.labels.astype(np.float32)
        self._targets = None if targets is None else torch.from_numpy(targets).to(self.device)

    def show_at(self, height: int, width: int) -> None:
        """Makes images of that size from now on, where windows of stored ones are resized anyway.

        Changes that count pixels are made at the recipe's size, whatever the step's.
        """
        counts_pixels = self.augmentation.pad or self.augmentation.cutout
        if self._drawer.sizes is not None and not counts_pixels:
            self._set_size(height, width)

    def _set_size(self, height: int, width: int) -> None:
        # A step that is recorded may copy nothing from the host.
        self._size = size = (height, width)
        if size not in self._tools:
            self._tools[size] = _Tools.of(size, self._batching)

    def indices(self, epoch: int, *, skip: int = 0) -> Iterator[NDArray[np.int64]]:
        """Yields which images are in each batch of epoch number `epoch`, (B,), from `skip` on."""
        order = self.share.of(self.order.epoch(epoch))
        for start in range(skip * self.order.batch_size, len(order), self.order.batch_size):
            yield order[start : start + self.order.batch_size]

    def reorder(self, order: Order) -> None:
        assert order.batch_size == self.order.batch_size, "loaders have room for one batch size"
        self.order = order

    def plans(self, epoch: int, *, skip: int = 0) -> Iterator[Tensor]:
        """Yields what each batch of an epoch is made of, after `skip`: int64, a row a number."""
        order = self.order.epoch(epoch)
        labels = self.labels.take(order) if self._targets is None else np.zeros_like(order)
        drawer = self._drawer._replace(seed=self.order.seed, epoch=epoch)
        draws = draw_in_order(self.augmentation, order, drawer, repeats=self.order.repeats)
        table = torch.from_numpy(self.share.of(np.stack([order, labels, *draws.values()])))
        if self.device.type == "cuda":
            # A copy from pageable memory would wait for the GPU.
            table = table.pin_memory()
        table = table.to(self.device, non_blocking=True)
        for start in range(skip * self.order.batch_size, table.shape[1], self.order.batch_size):
            yield table[:, start : start + self.order.batch_size]

    def dummy_plan(self, size: int) -> Tensor:
        """Returns a plan of the first images, whole, of one class and not moved.

        What is drawn for them alone costs as much as in an epoch: operations, rectangles.
        """
        plan = torch.zeros((len(self._names), size), dtype=torch.int64, device=self.device)
        plan[0] = torch.arange(size, device=self.device) % len(self.labels)
        if self._drawer.sizes is not None:
            plan[self._names.index("window_h")] = self._box[0]
            plan[self._names.index("window_w")] = self._box[1]
        drawer = self._drawer._replace(num_images=size)
        for change in (*self.augmentation.pixel_changes, *self.augmentation.normalised_changes):
            for name, values in change.draw(drawer).items():
                plan[self._names.index(name)] = torch.from_numpy(values).to(self.device)
        return plan

    def make(self, pixels: Tensor, table: Tensor, *, whole: bool) -> tuple[Tensor, Tensor]:
        """Makes float32 (B, C, H, W) and labels of the `whole` set's pixels, or the batch's."""
        plan = dict(zip(self._names, table.unbind(), strict=True))
        config = self.augmentation
        seen = self._seen(pixels, plan, whole=whole)
        if config.pixel_changes:
            changed = seen.permute(0, 3, 1, 2).contiguous().float()
            for change in config.pixel_changes:
                changed = change.apply(changed, plan)
            seen = changed.permute(0, 2, 3, 1).contiguous()
        images = self._tools[self._size].normalize(seen)
        if config.affine:
            images = image_ops.change_affinely(images, plan["affine"], most=config.affine)
        if config.cutout:
            y, x = plan["corner_y"], plan["corner_x"]
            image_ops.cut_out(images, side=config.cutout, corner_y=y, corner_x=x)
        images = image_ops.to_channels_first(images, channels_last=self._batching.channels_last)
        for change in config.normalised_changes:
            images = change.apply(images, plan)
        labels = plan["labels"]
        if self._targets is not None:
            labels = self._targets.index_select(0, plan["indices"])
        if config.mixed_images == 1:
            return images, labels
        return mixed(images, labels, plan, num_classes=self._batching.num_classes)

    def _seen(self, pixels: Tensor, plan: dict[str, Tensor], *, whole: bool) -> Tensor:
        """Returns the batch's images as uint8 (B, H, W, C), cropped, moved and flipped."""
        indices: Tensor | None = plan["indices"] if whole else None
        is_flipped, is_padded = plan.get("is_flipped"), self.augmentation.pad > 0
        if self._drawer.sizes is not None:
            windows = torch.stack([plan[name] for name in WINDOW])
            flips = None if is_padded else is_flipped
            pixels = image_ops.cut(pixels, windows, self._size, indices=indices, is_flipped=flips)
            if not is_padded:
                return pixels
            indices = None
        if not is_padded and is_flipped is None:
            return pixels if indices is None else pixels.index_select(0, indices)
        if indices is None:
            indices = torch.arange(len(pixels), device=pixels.device)
        names, like = ("shift_y", "shift_x", "is_flipped"), plan["indices"]
        moves = {n: plan[n] if n in plan else torch.zeros_like(like) for n in names}
        return self._tools[self._size].move(pixels, indices, **moves)


class _Tools(NamedTuple):
    """What images of one size need."""

    normalize: image_ops.Normalizer
    move: image_ops.Mover

    @classmethod
    def of(cls, size: tuple[int, int], batching: Batching) -> "_Tools":
        height, width = size
        mean, std, device = batching.mean, batching.std, batching.device
        normalize = image_ops.Normalizer(mean, std, height * width, device)
        pad = batching.augmentation.pad
        return cls(normalize, image_ops.Mover(height, width, pad=pad, device=device))


def _drawer_of(images: Images, batching: Batching) -> Drawer:
    """Returns what draws at the size that the network sees, with those of images that are cropped.

    Raises: ConfigError if these are of several sizes, and no size to train at is given.
    """
    num_images, height, width, _ = images.pixels.shape
    side, box = batching.image_size, (height, width)
    if side is None and images.sizes is not None:
        raise ConfigError.of(
            "recipe.image_size",
            "must say at which size to train, as the data set's images are of several sizes",
            given="none",
            hint="Set for example `image_size: 128`.",
        )
    size, sizes = box if side is None else (side, side), images.sizes
    is_cropped = size != box or not isinstance(batching.augmentation.crop, Centre)
    if sizes is None and is_cropped:
        sizes = np.broadcast_to(np.array(box, dtype=np.int64), (num_images, 2))
    return Drawer(num_images, 0, 0, *size, sizes)


class Loader(ABC):
    """An opened loader. Batches are (images, labels) on the device."""

    num_samples: int
    """Images of the set; so many come in an epoch, unless its order is a special one."""

    def __init__(self, batches: Batches) -> None:
        self.num_samples, self._batches = len(batches.labels), batches

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

        Images are float32, normalised, (B, C, H, W); labels int64, (B,), or, where images are mixed
        or of several classes, float32, (B, K). The last batch may be smaller.
        """
        for batch in self.planned(epoch, skip=skip):
            images, labels = batch
            yield images, labels

    def show_at(self, height: int, width: int) -> None:
        """Makes images of that size from now on, where they are resized anyway."""
        self._batches.show_at(height, width)

    def reorder(self, order: Order) -> None:
        """Gives the epochs from now on another order of the same batch size; none is under way."""
        self._batches.reorder(order)

    @abstractmethod
    def close(self) -> None:
        """Ends what the loader started, workers included; may be called again."""
