"""The order in which an epoch goes through the set."""

from collections.abc import Iterator
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

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """Returns the indices of all images in the order of epoch number `epoch`, (N,)."""
        return randomness.permutation(self.seed, epoch, ORDER, count=self.num_samples)

    def batches(self, epoch: int) -> Iterator[NDArray[np.int64]]:
        """Yields the indices of each batch, (B,); the last may be smaller."""
        order = self.epoch(epoch)
        for start in range(0, self.num_samples, self.batch_size):
            yield order[start : start + self.batch_size]
