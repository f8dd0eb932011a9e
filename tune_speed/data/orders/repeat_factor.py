"""Repeat-factor sampling: images of rare classes come several times an epoch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tune_speed.data import randomness
from tune_speed.data.orders.base import ORDER, Order, OrderConfig

# Key of the random stream of the numbers of copies, under (seed, epoch).
COPIES = 7


class RepeatFactor(OrderConfig):
    """Images of rare classes come several times an epoch: r = max(1, sqrt(threshold / share)).

    `share` is that of the image's class in the training part. An image comes floor(r) times, and
    once more with probability r - floor(r), drawn again each epoch; so the length of epochs varies.
    Where no class is rarer than the threshold, this is `shuffle`.

    Source: Gupta et al. 2019, LVIS (arXiv:1908.03195), section 4.2; detectron2's
    RepeatFactorTrainingSampler.
    """

    threshold: float = Field(default=0.1, gt=0, le=1)
    """Share of the images below which a class counts as rare; LVIS has 0.001 for 1,203 classes."""

    def open(
        self, labels: NDArray[np.int64], *, batch_size: int, samples_per_step: int, seed: int
    ) -> Order:
        """Returns the order."""
        shares = np.bincount(labels) / len(labels)
        return RepeatedOrder(repeat_factors(shares, self.threshold)[labels], batch_size, seed)


def repeat_factors(shares: NDArray[np.float64], threshold: float) -> NDArray[np.float64]:
    """Returns how often an image of each class comes an epoch, on average, (K,).

    `shares` (K,) are the classes' of the images; 0 gives 1.
    """
    return np.asarray(np.maximum(1.0, np.sqrt(threshold / np.where(shares > 0, shares, 1.0))))


@dataclass(frozen=True, eq=False)
class RepeatedOrder(Order):
    """Every image as often as its factor says, in random order."""

    factors: NDArray[np.float64]
    """How often each image comes an epoch, on average, (N,); at least 1."""
    batch_size: int
    seed: int

    @property
    def repeats(self) -> bool:
        """Whether any image may come twice."""
        return bool((self.factors > 1).any())

    def num_in(self, epoch: int) -> int:
        """Returns the samples of epoch number `epoch`, at least N."""
        return int(self._copies(epoch).sum())

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """Returns the indices of the images of epoch number `epoch`, (num_in,)."""
        indices = np.repeat(np.arange(len(self.factors)), self._copies(epoch))
        return indices[randomness.permutation(self.seed, epoch, ORDER, count=len(indices))]

    def _copies(self, epoch: int) -> NDArray[np.int64]:
        whole = np.floor(self.factors)
        drawn = randomness.below(2**32, self.seed, epoch, COPIES, count=len(self.factors))
        return np.asarray(whole + (drawn < (self.factors - whole) * 2**32), dtype=np.int64)
