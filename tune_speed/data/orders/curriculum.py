"""Curriculum: easy images first, and the others as the training goes on."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tune_speed.data import randomness
from tune_speed.data.orders.base import Order, OrderConfig, SampleOrder

# Keys of random streams: of a pass within a round, under (seed, round, pass), and of the ranks
# of the random control, under (seed).
PASS, RANK = 8, 9

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

    def open(
        self, labels: NDArray[np.int64], *, batch_size: int, samples_per_step: int, seed: int
    ) -> Order:
        """Returns the order, which is a plain shuffle until it gets scores."""
        stage_samples = self.step_length * samples_per_step
        return UnscoredCurriculum(len(labels), batch_size, seed, self, labels, stage_samples)

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
    """Stages of a growing part of the set, then epochs of all of it, numbered on from these."""

    ranked: NDArray[np.int64]
    """Indices of all images, in the order in which they join."""
    sizes: tuple[int, ...]
    """Images that have joined, in each stage before the last."""
    stage_samples: int

    @property
    def repeats(self) -> bool:
        """Always: a stage may go through its images more than once."""
        return True

    def num_in(self, epoch: int) -> int:
        """Returns the samples of round number `epoch`: of its stage, or of the set."""
        return self.stage_samples if epoch < len(self.sizes) else self.num_samples

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """Returns the indices of the images of round number `epoch`, (num_in,)."""
        if epoch >= len(self.sizes):
            return super().epoch(epoch)
        size = self.sizes[epoch]
        passes = [
            randomness.permutation(self.seed, epoch, PASS, number, count=size)
            for number in range(math.ceil(self.stage_samples / size))
        ]
        return self.ranked[np.concatenate(passes)[: self.stage_samples]]


@dataclass(frozen=True, eq=False)
class UnscoredCurriculum(SampleOrder):
    """A plain shuffle, until it gets scores."""

    config: Curriculum
    labels: NDArray[np.int64]
    stage_samples: int

    def with_scores(self, scores: NDArray[np.floating]) -> Order:
        """Returns the curriculum by each image's loss, (N,). Not a number counts as hardest."""
        assert scores.shape == self.labels.shape, (scores.shape, self.labels.shape)
        direction = self.config.direction
        if direction == "random":
            ranks = randomness.permutation(self.seed, RANK, count=len(scores))
        else:
            exact = scores.astype(np.float64)
            hardness = np.nan_to_num(exact, nan=np.inf, posinf=np.inf, neginf=-np.inf)
            order = np.argsort(-hardness if direction == "anti" else hardness, kind="stable")
            ranks = np.empty(len(scores), dtype=np.int64)
            ranks[order] = np.arange(len(scores))
        return CurriculumOrder(
            self.num_samples,
            self.batch_size,
            self.seed,
            ranked=balanced(ranks, self.labels),
            sizes=self.config.sizes(len(self.labels)),
            stage_samples=self.stage_samples,
        )


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
