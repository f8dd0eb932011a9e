"""Shuffling: an epoch goes through the set in random order."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tune_speed.data import randomness
from tune_speed.data.orders.base import Order, OrderConfig

# Key of the random stream of the order, under (seed, epoch).
ORDER = 0


class Shuffle(OrderConfig):
    """Every image once an epoch, in a new random order each time.

    Source: the usual practice.
    """

    def open(
        self, labels: NDArray[np.int64], *, batch_size: int, samples_per_step: int, seed: int
    ) -> Order:
        """Returns the order."""
        return SampleOrder(len(labels), batch_size, seed)


@dataclass(frozen=True, eq=False)
class SampleOrder(Order):
    """Every image once an epoch: a function of the seed and the epoch's number alone."""

    num_samples: int
    batch_size: int
    seed: int

    def num_in(self, epoch: int) -> int:
        """Returns the number of images, whatever the epoch."""
        return self.num_samples

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """Returns the indices of all images in the order of epoch number `epoch`, (N,)."""
        return randomness.permutation(self.seed, epoch, ORDER, count=self.num_samples)
