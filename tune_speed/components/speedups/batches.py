"""What a step sees of the data: how many samples, how large, and which of them it learns from."""

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tune_speed.components.speedups import modules
from tune_speed.components.speedups.base import Shape, Slot, SpeedupConfig, refusal

if TYPE_CHECKING:
    from torch import Tensor, nn


Share = Annotated[float, Field(ge=0, lt=1)]
Factor = Annotated[int, Field(ge=1, le=1024)]


class BatchStages(SpeedupConfig):
    """The batch grows: from `at[i]` of the run on, a step has `factors[i]` times the samples.

    Micro-batches stay as they are; a step has more of them. The rate stays too: a larger batch
    lowers the noise of the gradient, as a lower rate would, but with fewer optimizer steps. It
    saves time where optimizer steps or the exchange of gradients cost much.

    Source: Smith et al. 2018, Don't Decay the Learning Rate, Increase the Batch Size
    (arXiv:1711.00489), section 4. Deviation: stages begin at given shares of the samples.
    """

    slot: ClassVar[Slot] = "batch_growth"
    untimed_fields = frozenset({"factors", "at"})

    # YAML and JSON have lists, which strict validation does not take for a tuple.
    factors: tuple[Factor, ...] = Field(default=(1, 2, 4), strict=False)
    """Samples of a step over `effective_batch_size` in each stage."""
    at: tuple[Share, ...] = Field(default=(0.0, 0.5, 0.75), strict=False)
    """Share of the run's samples at which each stage begins: ascending, the first 0."""

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        if not self.at or len(self.at) != len(self.factors):
            raise ValueError("at must have as many entries as factors, and at least one")
        if self.at[0] != 0:
            raise ValueError("at must begin with 0")
        if any(earlier >= later for earlier, later in pairwise(self.at)):
            raise ValueError("at must be ascending")
        return self

    def growth(self) -> tuple[tuple[float, int], ...]:
        shares = (end - start for start, end in pairwise((*self.at, 1.0)))
        return tuple(zip(shares, self.factors, strict=True))


class ProgressiveResizing(SpeedupConfig):
    """Small images first: their scale grows from `initial_scale` to 1, as do the costs of a step.

    The scale at progress s: initial_scale up to `delay_frac`, then on a straight line to 1 at
    1 − `finetune_frac`, then 1. Height and width are rounded to multiples of `multiple`, and at
    most whole. Evaluation sees whole images. A step costs about scale² of what it costs at 1.

    The network must take images of any size, so it pools globally: ResNets and their kin do, ViTs
    do not. Where cuDNN may choose its algorithms (`deterministic: false`), each size is tried out.

    Source: mosaicml/composer, ProgressiveResizing; fastai. Deviations: height and width are
    rounded each by itself, and `bilinear` is there as well, with antialiasing.
    """

    slot: ClassVar[Slot] = "resolution"
    untimed_fields = frozenset({"initial_scale", "delay_frac", "finetune_frac", "multiple"})

    initial_scale: float = Field(default=0.5, gt=0, le=1)
    """Side of the first images over that of whole ones, in (0, 1]."""
    delay_frac: float = Field(default=0.5, ge=0, lt=1)
    """Share of the run after which images begin to grow."""
    finetune_frac: float = Field(default=0.2, ge=0, lt=1)
    """Share of the run, at its end, with whole images."""
    multiple: int = Field(default=4, ge=1, le=64)
    """Heights and widths are multiples of this [pixels]."""
    mode: Literal["nearest", "bilinear"] = "nearest"
    """How images are made smaller; nearest is cheaper, bilinear loses less. Crops of stored images
    are resized once, bilinearly, to the step's size, so that neither costs anything there."""

    @model_validator(mode="after")
    def _leaves_room_to_grow(self) -> Self:
        if self.delay_frac + self.finetune_frac > 1:
            raise ValueError("delay_frac + finetune_frac must be at most 1")
        return self

    def scale(self, frac: float) -> float:
        """Returns the side of images over that of whole ones at `frac` of the run."""
        end = 1 - self.finetune_frac
        if frac >= end:
            return 1.0
        if frac <= self.delay_frac:
            return self.initial_scale
        grown = (frac - self.delay_frac) / (end - self.delay_frac)
        return self.initial_scale + (1 - self.initial_scale) * grown

    def check_model(self, model: "nn.Module") -> None:
        if (error := modules.heads.why_one_size(model)) is not None:
            raise refusal(
                "speedups.resolution.progressive_resizing",
                must="must have a network that takes images of any size, by pooling globally",
                given=f"{type(model).__name__}, which does not ({type(error).__name__}: {error})",
                hint="Try a ResNet, or leave progressive_resizing out.",
            ) from error

    def shape(self, shape: Shape, *, frac: float) -> Shape:
        scale = self.scale(frac)
        height, width = (self._scaled(side, scale) for side in (shape.height, shape.width))
        return shape._replace(height=height, width=width)

    def change_batch(
        self, images: "Tensor", labels: "Tensor", shape: Shape
    ) -> "tuple[Tensor, Tensor]":
        from torch.nn import functional

        size = (shape.height, shape.width)
        if tuple(images.shape[2:]) == size:
            return images, labels
        antialias = self.mode == "bilinear"
        images = functional.interpolate(images, size=size, mode=self.mode, antialias=antialias)
        return images, labels

    def _scaled(self, side: int, scale: float) -> int:
        if scale == 1:
            return side
        return min(side, max(1, round(side * scale / self.multiple)) * self.multiple)


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
        return shape._replace(kept_frac=self.keep) if self.start <= frac < self.end else shape

    def kept(self, num_samples: int, shape: Shape) -> int:
        return max(1, round(num_samples * shape.kept_frac))

    def choose(
        self,
        images: "Tensor",
        labels: "Tensor",
        shape: Shape,
        *,
        losses: "Callable[[Tensor, Tensor], Tensor]",
    ) -> "tuple[Tensor, Tensor]":
        num_kept = self.kept(len(labels), shape)
        if num_kept == len(labels):
            return images, labels
        chosen = draw_by_rank(losses(images, labels), num_kept, power=1 / shape.kept_frac - 1)
        return images[chosen], labels[chosen]


def draw_by_rank(losses: "Tensor", count: int, *, power: float) -> "Tensor":
    """Returns the indices of `count` different samples, (count,), those with large losses mostly.

    The sample with the i-th smallest of N losses has the weight ((i + 1/2) / N)^power; a power of 0
    draws evenly. The host does not wait for the device.
    """
    import torch

    # Drawing without replacement is a race: each sample's time is exponential with its weight as
    # rate, and the first ones in are drawn.
    order = losses.argsort()
    places = torch.arange(len(losses), device=losses.device, dtype=torch.float32) + 0.5
    weights = (places / len(losses)) ** power
    times = torch.empty_like(weights).exponential_() / weights
    return order[times.topk(count, largest=False).indices]
