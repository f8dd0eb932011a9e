"""Orders: which samples come in which round, and how often; and the usual one, shuffled."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tune_speed.core.config import Config
from tune_speed.data import randomness

# Key of the random stream of the order, under (seed, epoch).
ORDER = 0


class Order(ABC):
    """The samples of every round, a function of the seed, the round's number and the scores.

    A round is what the loaders call an epoch: most orders go through the set once in each.
    """

    batch_size: int
    """Samples of a batch; the last of a round may be smaller."""
    seed: int
    """Of the order and of the changes to images."""

    @property
    def repeats(self) -> bool:
        """Whether an image may come twice in a round: its changes are then drawn each time."""
        return False

    @abstractmethod
    def num_in(self, epoch: int) -> int:
        """Returns the samples of round number `epoch`, at least 1."""

    @abstractmethod
    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """Returns the indices of the images of round number `epoch`, (num_in,)."""

    def with_scores(self, scores: NDArray[np.floating]) -> "Order":
        """Returns the order that follows how hard each image of the set is, (N,); larger: harder.

        Without `needs_scores` it is the same order.
        """
        return self


class OrderConfig(Config):
    """Base of the orders."""

    needs_scores: ClassVar[bool] = False
    """Whether images must be scored before training; until then, `open` gives a plain shuffle."""

    def open(
        self, labels: NDArray[np.int64], *, batch_size: int, samples_per_step: int, seed: int
    ) -> Order:
        """Returns the order for the training part's labels (N,).

        An optimizer step takes `samples_per_step` samples. The seed and a round's number fix the
        samples of the round.
        """
        raise NotImplementedError


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


@dataclass(frozen=True, eq=False)
class WholeSteps(Order):
    """Another order's rounds without their ragged last step, unless it is their only one."""

    order: Order
    samples_per_step: int
    batch_size: int
    seed: int

    @property
    def repeats(self) -> bool:
        """As in the other order."""
        return self.order.repeats

    def num_in(self, epoch: int) -> int:
        """Returns the samples of the whole steps of round number `epoch`."""
        whole = self.order.num_in(epoch)
        return whole - whole % self.samples_per_step or whole

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """Returns the first indices of the other order's round number `epoch`, (num_in,)."""
        return self.order.epoch(epoch)[: self.num_in(epoch)]

    def with_scores(self, scores: NDArray[np.floating]) -> Order:
        """Returns the whole steps of the order that follows the scores, (N,)."""
        return replace(self, order=self.order.with_scores(scores))
