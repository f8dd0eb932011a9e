"""A first training on a part of the set."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from tune_speed.components.speedups.base import Slot, SpeedupConfig, Start

if TYPE_CHECKING:
    from torch import Tensor, nn

# Number of the epoch whose beginning is the part; a run does not get there.
EPOCH = 2**31


class PretrainSubset(SpeedupConfig):
    """Pretraining on a part of the training set, before the training on all of it.

    It has an optimizer of its own and steps of one micro-batch, with the recipe's rate for so many
    samples (Goyal et al. 2017, 2.1) held constant after a warm-up over a tenth of the steps. The
    run then begins with its weights and batch statistics. Its time counts: the record's time before
    the first step is the pretraining's, and what a user who has the weights already would save.

    Source: the blog post "Training Time Speed Ups", which takes the less valuable part: that is
    `easiest`, by the scores of the `curriculum` (Hacohen and Weinshall 2019), which cost a short
    training more. Passes over a random part show the same batches again.
    """

    slot: ClassVar[Slot] = "init"
    untimed_fields = frozenset({"part", "which", "epochs"})

    part: float = Field(default=0.1, gt=0, le=1)
    """Share of the training part."""
    which: Literal["random", "easiest"] = "random"
    """random: any images; easiest: of each class those with the least loss after a short training,
    which a network learns least from."""
    epochs: int = Field(default=1, ge=1, le=1000)
    """Passes over it."""

    def init_weights(self, model: "nn.Module", start: Start) -> None:
        """Trains the model on the part."""
        batches_in_pass = self.part * start.num_train / start.batch_size
        if self.which == "random" or self.part == 1:
            start.fit(model, self._batches(start), self.epochs * math.ceil(batches_in_pass))
            return
        easiest = start.easiest(self.part, self.epochs)
        start.fit(model, easiest, math.ceil(self.epochs * batches_in_pass))

    def _batches(self, start: Start) -> "Iterator[tuple[Tensor, Tensor]]":
        """Yields the batches of all passes; the last of a pass is whole."""
        for _ in range(self.epochs):
            left = self.part * start.num_train
            for images, labels in start.batches(EPOCH):
                yield images, labels
                left -= len(labels)
                if left <= 0:
                    break
