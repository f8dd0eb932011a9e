"""What the weights are before the first step: drawn, derived from patches, or learned elsewhere."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from tune_speed.components.speedups import modules
from tune_speed.components.speedups.base import (
    RecipeView,
    Shape,
    Slot,
    SpeedupConfig,
    Start,
    refusal,
)
from tune_speed.core.config import Component
from tune_speed.core.errors import Problem
from tune_speed.data import DATASETS
from tune_speed.data.base import DatasetConfig

if TYPE_CHECKING:
    from torch import Tensor, nn


KAIMING = "speedups.init.kaiming"


class Kaiming(SpeedupConfig):
    """Kaiming initialisation: weights of convolutions ~ N(0, 2 / fan_out); norms 1 and 0, biases 0.

    fan_out is kernel height · width · channels out / groups. Weights of linear layers, and of a
    convolution that gives the logits, stay as the network brings them. torch's own weights of
    convolutions are uniform with a variance of 1 / (3 · fan_in), six times smaller; ResNets of
    torchvision and timm, and ours, have these weights already.

    Source: He et al. 2015, Delving Deep into Rectifiers (arXiv:1502.01852); zero_init_last: Goyal
    et al. 2017 (arXiv:1706.02677), section 5.1.
    """

    slot: ClassVar[Slot] = "init"
    untimed_fields = frozenset({"zero_init_last"})

    zero_init_last: bool = False
    """Set the scale of the last batch norm of each residual block to 0, so that each begins as its
    shortcut."""

    def refusals(self, recipe: RecipeView) -> Iterator[Problem]:
        yield from refuse_loaded_weights(recipe, name="kaiming")

    def check_model(self, model: "nn.Module") -> None:
        if self.zero_init_last and not modules.initial_weights.last_norms(model):
            raise refusal(
                f"{KAIMING}.zero_init_last",
                must="must have a network with residual blocks that end with a batch norm",
                given=type(model).__name__,
            )

    def init_weights(self, model: "nn.Module", start: Start) -> None:
        modules.initial_weights.draw_weights(model)
        if self.zero_init_last:
            for norm in modules.initial_weights.last_norms(model):
                norm.weight.data.zero_()


def refuse_loaded_weights(recipe: RecipeView, *, name: str) -> Iterator[Problem]:
    """Yields that the model must not load weights, if it does."""
    for field in ("pretrained", "weights_file"):
        if value := getattr(recipe.model, field, None):
            yield Problem(
                path=f"model.{field}",
                must=f"must be left out with {name}, which would replace the weights",
                given=str(value),
            )


WHITENING = "speedups.init.whitening"


class Whitening(SpeedupConfig):
    """The first convolution begins with filters whose outputs are uncorrelated and of variance 1.

    With eigenvalues λ_i (largest first) and eigenvectors e_i of the covariance of the training
    images' patches, filters are ± e_i / sqrt(λ_i + eps). Of F filters, the first 2·min(F/2, D) are
    these, where D is channels · kernel height · width; the others stay fresh. A bias is 0. The
    patches are those that the convolution sees, as training augments them, padding included.

    Source: D. Page 2019, How to Train Your ResNet 8; K. Jordan 2024 (arXiv:2404.00498), section
    3.1. Deviations: their kernel of 2x2 without batch norm after it is not forced on the network;
    the covariance is centred.
    """

    slot: ClassVar[Slot] = "init"

    images: int = Field(default=5000, ge=1, le=1_000_000)
    """Training images whose patches are taken, at most all."""
    eps: float = Field(default=5e-4, gt=0, le=1)
    """Added to the eigenvalues, so that patterns that hardly occur are not blown up."""
    frozen: bool = False
    """Do not train the weights of the first convolution, which saves their gradient."""
    bias_frac: float = Field(default=1.0, ge=0, le=1)
    """Share of the run's steps, from the first, in which the first convolution's bias is trained,
    in [0, 1]. From then on, with `frozen`, the backward pass ends before that layer. airbench94
    trains it for 3 epochs, of 8 or 9.9."""

    def refusals(self, recipe: RecipeView) -> Iterator[Problem]:
        yield from refuse_loaded_weights(recipe, name="whitening")

    def check_model(self, model: "nn.Module") -> None:
        conv = modules.heads.first_conv(model)
        if conv is None or conv.groups != 1 or conv.out_channels < 2:
            raise refusal(
                WHITENING,
                must="must have a network that begins with a convolution, not in groups, of two or"
                " more filters",
                given=type(model).__name__,
            )
        if self.bias_frac < 1 and conv.bias is None:
            raise refusal(
                f"{WHITENING}.bias_frac",
                must="must be 1 where the first convolution has no bias",
                given=f"{self.bias_frac:g}, with {type(model).__name__}",
                hint="Leave it out, or try model: speednet.",
            )

    def speed_fields(self) -> dict[str, Any]:
        return {"frozen": True} if self.frozen else {}

    def change_model(self, model: "nn.Module", *, num_classes: int, seed: int) -> "nn.Module":
        conv = modules.heads.first_conv(model)
        assert conv is not None, "check_model comes before"
        conv.weight.requires_grad_(not self.frozen)
        return model

    def shape(self, shape: Shape, *, frac: float) -> Shape:
        return shape._replace(is_bias_frozen=frac >= self.bias_frac)

    def begin_step(self, model: "nn.Module", shape: Shape) -> None:
        if self.bias_frac == 1:
            return
        conv = modules.heads.first_conv(model)
        assert conv is not None and conv.bias is not None, "check_model comes before"
        conv.bias.requires_grad_(not shape.is_bias_frozen)

    def init_weights(self, model: "nn.Module", start: Start) -> None:
        conv = modules.heads.first_conv(model)
        assert conv is not None, "check_model comes before"
        images = (images for images, _ in start.batches(0))
        _, covariance = modules.initial_weights.statistics(
            conv, images, count=min(self.images, start.num_train)
        )
        modules.initial_weights.set_filters(conv, covariance, eps=self.eps)


# Number of the epoch whose beginning is the part; a run does not get there.
EPOCH_OF_PART = 2**31


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
            for images, labels in start.batches(EPOCH_OF_PART):
                yield images, labels
                left -= len(labels)
                if left <= 0:
                    break


class PretrainOther(SpeedupConfig):
    """Pretraining on another data set; the final layer starts fresh for the classes at hand.

    It has an optimizer of its own, with the recipe's rate for steps of `batch_size` images (Goyal
    et al. 2017, 2.1) held constant after a warm-up over a tenth of the steps, and a final layer
    for the other set's classes, which is thrown away; all other weights and batch statistics are
    what the run begins with. Its time counts, reading the images apart: the record's time before
    the first step is the pretraining's, and what a user who has the weights already would save.
    Such a user names them as the model's `weights_file`.

    The other images must have as many channels; they are not augmented, and of their own size.

    Source: the blog post "Training Time Speed Ups". Deviation: the final layer is not trained
    alone first, and all layers have one rate.
    """

    slot: ClassVar[Slot] = "init"
    untimed_fields = frozenset({"dataset", "train_samples", "epochs", "batch_size"})
    conflicts: ClassVar[dict[str, str]] = {
        "boosted": "pretraining would train the blocks of the first stage alone.",
        "easiest_first": "its groups are those of other classes.",
    }

    dataset: Annotated[DatasetConfig, Component(DATASETS, tag="name")]
    """The other data set by name, with its fields."""
    train_samples: int | None = Field(default=None, ge=1)
    """Images of it, with the classes in proportion; null: all of its training part but a tenth."""
    epochs: int = Field(default=1, ge=1, le=1000)
    """Passes over them."""
    batch_size: int = Field(default=128, ge=2, le=65_536)
    """Images of a step."""

    def located(self) -> Self:
        return self.model_copy(update={"dataset": self.dataset.located()})

    def read_data(self) -> None:
        modules.initial_weights.read_other(self.dataset, self.train_samples)

    def init_weights(self, model: "nn.Module", start: Start) -> None:
        other = (self.dataset, self.train_samples)
        modules.initial_weights.learn_from_other(
            model, start, other, epochs=self.epochs, batch_size=self.batch_size
        )
