"""The order in which an epoch goes through the set. Needs no torch: worker processes use it too."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tune_speed.data import randomness

ORDER = 0
"""Name of the random stream of the order, under (seed, epoch)."""


class SampleOrder(NamedTuple):
    """Which images are in which batch: a function of the seed and the epoch's number alone."""

    num_samples: int
    batch_size: int
    seed: int

    @property
    def num_batches(self) -> int:
        """Batches of an epoch; the last may be smaller."""
        return -(-self.num_samples // self.batch_size)

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """Returns the indices of all images in the order of epoch number `epoch`, (N,)."""
        return randomness.permutation(self.seed, epoch, ORDER, count=self.num_samples)

    def batch(self, number: int) -> slice:
        """Returns the place of batch `number` in an epoch's order."""
        return slice(number * self.batch_size, (number + 1) * self.batch_size)
