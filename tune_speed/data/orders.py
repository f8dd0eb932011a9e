"""Orders: which samples come in which round, how often, and on which device."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tune_speed.core.config import Config
from tune_speed.data import randomness
from tune_speed.data.base import class_counts, main_classes

Labels = NDArray[Any]
# Keys of random streams: of the order and of the numbers of copies, under (seed, epoch), of a pass
# within a round, under (seed, round, pass), and of the ranks of the random control, under (seed).
ORDER, COPIES, PASS, RANK = 0, 7, 8, 9


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
        """Returns the order that follows how hard images are, (N,), larger: harder; or itself."""
        return self


class OrderConfig(Config):
    """Base of the orders."""

    needs_scores: ClassVar[bool] = False
    """Whether images must be scored before training; until then, `open` gives a plain shuffle."""

    def open(self, labels: Labels, *, batch_size: int, samples_per_step: int, seed: int) -> Order:
        """Returns the order for the training part's labels, (N,) or several (N, K).

        An optimizer step takes `samples_per_step` samples. The seed and a round's number fix the
        samples of the round.
        """
        raise NotImplementedError


class Shuffle(OrderConfig):
    """Every image once an epoch, in a new random order each time.

    Source: the usual practice.
    """

    def open(self, labels: Labels, *, batch_size: int, samples_per_step: int, seed: int) -> Order:
        return SampleOrder(len(labels), batch_size, seed)


@dataclass(frozen=True, eq=False)
class SampleOrder(Order):
    """Every image once an epoch, or as often as its factor says, in random order.

    A function of the seed and the epoch's number alone.
    """

    num_samples: int
    batch_size: int
    seed: int
    factors: NDArray[np.float64] | None = field(default=None, kw_only=True)
    """How often each image comes an epoch, on average, (N,), at least 1; None: once."""

    @property
    def repeats(self) -> bool:
        return self.factors is not None and bool((self.factors > 1).any())

    def num_in(self, epoch: int) -> int:
        return self.num_samples if self.factors is None else len(self._indices(epoch))

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        indices = self._indices(epoch)
        return indices[randomness.permutation(self.seed, epoch, ORDER, count=len(indices))]

    def _indices(self, epoch: int) -> NDArray[np.int64]:
        indices = np.arange(self.num_samples)
        if self.factors is None:
            return indices
        whole = np.floor(self.factors)
        drawn = randomness.below(2**32, self.seed, epoch, COPIES, count=self.num_samples)
        more = drawn < (self.factors - whole) * 2**32
        return np.repeat(indices, (whole + more).astype(np.int64))


@dataclass(frozen=True, eq=False)
class WholeSteps(Order):
    """Another order's rounds without their ragged last step, unless it is their only one."""

    order: Order
    samples_per_step: int
    batch_size: int
    seed: int

    @property
    def repeats(self) -> bool:
        return self.order.repeats

    def num_in(self, epoch: int) -> int:
        whole = self.order.num_in(epoch)
        return whole - whole % self.samples_per_step or whole

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        return self.order.epoch(epoch)[: self.num_in(epoch)]

    def with_scores(self, scores: NDArray[np.floating]) -> Order:
        return replace(self, order=self.order.with_scores(scores))


Number = TypeVar("Number", bound=np.generic)


class Share(NamedTuple):
    """What one device takes of every optimizer step; by default everything.

    A step of `samples_per_step` samples is cut into `size` stretches of equal length, in order, so
    that device number r takes the stretch that a single device would gather in the r-th part of its
    micro-batches. An epoch's ragged last step is cut as evenly as it goes, the first devices having
    one sample more; where it has fewer samples than there are devices, the last ones have none.
    """

    rank: int = 0
    """Number of the device, from 0."""
    size: int = 1
    """Devices."""
    samples_per_step: int = 0
    """Samples of an optimizer step over all devices, a multiple of `size`."""
    together: int = 1
    """So many neighbours stay on one device, as they are mixed with one another."""

    def counts(self, num_samples: int) -> tuple[int, ...]:
        if self.size == 1:
            return (num_samples,)
        steps, rest = divmod(num_samples, self.samples_per_step)
        whole = steps * (self.samples_per_step // self.size)
        even, more = divmod(-(-rest // self.together), self.size)
        ends = (rank * even + min(rank, more) for rank in range(self.size + 1))
        bounds = [min(rest, self.together * end) for end in ends]
        return tuple(whole + end - start for start, end in pairwise(bounds))

    def of(self, epoch: NDArray[Number]) -> NDArray[Number]:
        if self.size == 1:
            return epoch
        steps, rest = divmod(epoch.shape[-1], self.samples_per_step)
        length = self.samples_per_step // self.size
        first = np.arange(steps)[:, None] * self.samples_per_step + self.rank * length
        whole = (first + np.arange(length)).ravel()
        counts = self.counts(rest)
        begin = steps * self.samples_per_step + sum(counts[: self.rank])
        last = np.arange(begin, begin + counts[self.rank])
        return epoch.take(np.concatenate([whole, last]), axis=-1)


WHOLE = Share()


class RepeatFactor(OrderConfig):
    """Images of rare classes come several times an epoch: r = max(1, sqrt(threshold / share)).

    `share` is that of the image's class in the training part; of several classes, the rarest
    counts. An image comes floor(r) times, and once more with probability r - floor(r), drawn again
    each epoch; so the length of epochs varies. Where no class is rarer than the threshold, this is
    `shuffle`.

    Source: Gupta et al. 2019, LVIS (arXiv:1908.03195), section 4.2; detectron2's
    RepeatFactorTrainingSampler.
    """

    threshold: float = Field(default=0.1, gt=0, le=1)
    """Share of the images below which a class counts as rare; LVIS has 0.001 for 1,203 classes."""

    def open(self, labels: Labels, *, batch_size: int, samples_per_step: int, seed: int) -> Order:
        # The last is of images of no class, as main_classes has it.
        shares = np.append(class_counts(labels, 0), 0) / len(labels)
        factors = repeat_factors(shares, self.threshold)
        factors = factors[main_classes(labels)]
        return SampleOrder(len(labels), batch_size, seed, factors=factors)


def repeat_factors(shares: NDArray[np.float64], threshold: float) -> NDArray[np.float64]:
    """Returns how often an image of each class comes an epoch, (K,); a share of 0 gives 1."""
    return np.asarray(np.maximum(1.0, np.sqrt(threshold / np.where(shares > 0, shares, 1.0))))


Direction = Literal["easy_first", "anti", "random"]


class Curriculum(OrderConfig):
    """Easy images first: training begins with a share of them, which grows until it is the set.

    The share is start_frac · growth^k in the k-th stage of `step_length` optimizer steps, up to 1,
    and balanced: each class gives the same share of its images. A stage is a round: as many passes
    over its images, each in a new order, as its steps take. From the share of 1 on, rounds are
    epochs.

    How hard an image is, is its loss after a short training, which the clock counts: SGD with a
    momentum of 0.9 and steps of one micro-batch, at a rate of its own, since scores by a network
    that a high rate has just thrown about say little. The controls `anti` and `random` pay for it
    as well, so that times compare.

    Source: Hacohen and Weinshall 2019, On The Power of Curriculum Learning (arXiv:1904.03626),
    exponential pacing. Deviation: batches go through a stage's images in passes, rather than being
    drawn from them independently.
    """

    needs_scores: ClassVar[bool] = True

    direction: Direction = "easy_first"
    """easy_first: the least loss first; anti: the largest first; random: a random part of each
    class first."""
    start_frac: float = Field(default=0.04, gt=0, le=1)
    """Share of the images in the first stage."""
    growth: float = Field(default=1.9, gt=1, le=100)
    """Factor of the share from stage to stage."""
    step_length: int = Field(default=100, ge=1, le=100_000)
    """Optimizer steps of a stage."""
    scoring_epochs: float = Field(default=1.0, gt=0, le=100)
    """Passes of the short training whose losses are the scores."""
    scoring_lr: float = Field(default=0.05, gt=0)
    """Its rate for a step of 128 images, above 0; it is proportional to the images of a step."""

    def open(self, labels: Labels, *, batch_size: int, samples_per_step: int, seed: int) -> Order:
        more = (self, main_classes(labels), self.step_length * samples_per_step)
        return CurriculumOrder(len(labels), batch_size, seed, *more)

    def fractions(self) -> list[float]:
        """Returns the share of the images in each stage; the last is 1."""
        stages = math.ceil(math.log(1 / self.start_frac) / math.log(self.growth)) + 2
        grown = [min(1.0, self.start_frac * self.growth**stage) for stage in range(stages)]
        return grown[: grown.index(1.0) + 1]

    def sizes(self, num_images: int) -> tuple[int, ...]:
        """Returns the images in each stage before that of all."""
        return tuple(max(1, round(part * num_images)) for part in self.fractions()[:-1])


@dataclass(frozen=True, eq=False)
class CurriculumOrder(SampleOrder):
    """Stages of a growing part of the set, then epochs of all of it, numbered on from these.

    Until it gets scores it is a plain shuffle.
    """

    config: Curriculum
    classes: NDArray[np.int64]
    stage_samples: int
    ranked: NDArray[np.int64] | None = None
    """Indices of all images, in the order in which they join; None: there are no scores yet."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Images that have joined, in each stage before the last."""
        return () if self.ranked is None else self.config.sizes(self.num_samples)

    @property
    def repeats(self) -> bool:
        """Always, with scores: a stage may go through its images more than once."""
        return self.ranked is not None

    def num_in(self, epoch: int) -> int:
        return self.stage_samples if epoch < len(self.sizes) else self.num_samples

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        if self.ranked is None or epoch >= len(self.sizes):
            return super().epoch(epoch)
        size = self.sizes[epoch]
        passes = [
            randomness.permutation(self.seed, epoch, PASS, number, count=size)
            for number in range(math.ceil(self.stage_samples / size))
        ]
        return self.ranked[np.concatenate(passes)[: self.stage_samples]]

    def with_scores(self, scores: NDArray[np.floating]) -> Order:
        """Returns the curriculum by each image's loss, (N,). Not a number counts as hardest."""
        assert scores.shape == self.classes.shape, (scores.shape, self.classes.shape)
        if self.config.direction == "random":
            ranks = randomness.permutation(self.seed, RANK, count=len(scores))
        else:
            exact = scores.astype(np.float64)
            hardness = np.nan_to_num(exact, nan=np.inf, posinf=np.inf, neginf=-np.inf)
            is_anti = self.config.direction == "anti"
            order = np.argsort(-hardness if is_anti else hardness, kind="stable")
            ranks = np.empty(len(scores), dtype=np.int64)
            ranks[order] = np.arange(len(scores))
        return replace(self, ranked=balanced(ranks, self.classes))


def balanced(ranks: NDArray[np.int64], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the indices of all images, (N,), so that every beginning is balanced.

    The i-th image of a class of n, by rank (N,), is put at (i + 1/2) / n of the way. So a beginning
    has the same share of every class, to within one image where the classes are of equal size.
    """
    counts = np.bincount(labels)
    by_class = np.lexsort((ranks, labels))
    place = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    way = (place + 0.5) / np.repeat(counts, counts)
    return np.asarray(by_class[np.argsort(way, kind="stable")])
