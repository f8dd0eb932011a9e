"""Loaders: what turns the training part into batches on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from pydantic import Field

from tune_speed.config import Config
from tune_speed.data.augment import Augmentation
from tune_speed.data.base import Images

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Loader(Protocol):
    """An opened loader. Batches are (images, labels) on the device."""

    num_samples: int
    """Samples of one epoch."""

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Returns the batches of epoch number `epoch`, from 0; the last may be smaller.

        Images are float32, normalised, (B, C, H, W); labels int64, (B,). Each sample comes once.
        """

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
    ) -> Loader:
        """Returns a loader of `images`. Close it."""
        raise NotImplementedError


class TorchDataLoader(LoaderConfig):
    """`torch.utils.data.DataLoader`: worker processes gather batches, the device augments them."""

    workers: int = Field(default=0, ge=0)
    """Worker processes; 0: batches are gathered in the training process."""
    pin_memory: bool = True
    """Put batches in page-locked memory, from where a GPU copies them while it computes. Not
    applicable, and without effect, where the device is no GPU."""
    prefetch_factor: int = Field(default=2, ge=1)
    """Batches that each worker keeps ready."""
    persistent_workers: bool = True
    """Keep the workers from epoch to epoch."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Longest wait for a batch [s]; then an error, as a worker must hang."""


class Resident(LoaderConfig):
    """The whole set as uint8 on the device, where batches are gathered and augmented."""
