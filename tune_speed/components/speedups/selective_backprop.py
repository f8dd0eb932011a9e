"""Learning from the harder part of each batch alone."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, model_validator

from tune_speed.components.speedups.base import Shape, Slot, SpeedupConfig

if TYPE_CHECKING:
    from torch import Tensor


class SelectiveBackprop(SpeedupConfig):
    """Selective backpropagation: learns from the share `keep` of each batch, hard ones mostly.

    Between `start` and `end`, all samples go forward once, without gradients; then `keep` of them
    are drawn, without putting back, with weights proportional to q^(1/keep − 1), where q in (0, 1)
    is a sample's place in the batch by loss; those go forward and backward. A backward pass costs
    about two forward ones, so a step takes about (1 + 3·keep)/3 of its time.

    The forward pass without gradients updates the statistics of batch norms too.

    Source: Jiang et al. 2019, Accelerating Deep Learning by Focusing on the Biggest Losers
    (arXiv:1910.00762); drawing by place in the batch: mosaicml/composer, SelectiveBackprop.
    Deviation: no whole batches in between (its `interrupt`); a larger `keep` replaces them.
    """

    slot: ClassVar[Slot] = "selection"
    untimed_fields = frozenset({"start", "end", "keep"})
    is_recordable: ClassVar[bool] = False

    start: float = Field(default=0.5, ge=0, lt=1)
    """Share of the run at which it begins."""
    end: float = Field(default=0.9, gt=0, le=1)
    """Share of the run at which it ends; from there on, all samples count again."""
    keep: float = Field(default=0.5, gt=0, le=1)
    """Share of a batch that is learned from."""

    @model_validator(mode="after")
    def _begins_before_it_ends(self) -> Self:
        if self.start >= self.end:
            raise ValueError("start must be less than end")
        return self

    def shape(self, shape: Shape, *, frac: float) -> Shape:
        """Returns `shape` with the share of samples that is learned from."""
        return shape._replace(kept_frac=self.keep) if self.start <= frac < self.end else shape

    def kept(self, num_samples: int, shape: Shape) -> int:
        """Returns how many of a micro-batch's samples are learned from, at least 1."""
        return max(1, round(num_samples * shape.kept_frac))

    def choose(
        self,
        images: "Tensor",
        labels: "Tensor",
        shape: Shape,
        *,
        losses: "Callable[[Tensor, Tensor], Tensor]",
    ) -> "tuple[Tensor, Tensor]":
        """Returns the `kept` samples that are learned from, drawn at random; waits for nothing."""
        from tune_speed.components.speedups.modules.drawing import draw_by_rank

        num_kept = self.kept(len(labels), shape)
        if num_kept == len(labels):
            return images, labels
        chosen = draw_by_rank(losses(images, labels), num_kept, power=1 / shape.kept_frac - 1)
        return images[chosen], labels[chosen]
