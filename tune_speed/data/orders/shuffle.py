"""The order in which an epoch goes through the set."""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tune_speed.data import randomness

ORDER = 0
"""Name of the random stream of the order, under (seed, epoch)."""


class SampleOrder(NamedTuple):
    """Every image once an epoch: a function of the seed and the epoch's number alone."""

    num_samples: int
    batch_size: int
    seed: int
    repeats: bool = False

    def num_in(self, epoch: int) -> int:
        """Returns the number of images, whatever the epoch."""
        return self.num_samples

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """Returns the indices of all images in the order of epoch number `epoch`, (N,)."""
        return randomness.permutation(self.seed, epoch, ORDER, count=self.num_samples)

    def with_scores(self, scores: NDArray[np.floating]) -> Self:
        """Returns the same order: it has no use for scores."""
        return self
