"""A first convolution that whitens the patches of the images."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from tune_speed.components.speedups.base import (
    RecipeView,
    Shape,
    Slot,
    SpeedupConfig,
    Start,
    refusal,
)
from tune_speed.components.speedups.kaiming import refuse_loaded_weights
from tune_speed.core.errors import Problem

if TYPE_CHECKING:
    from torch import nn

PATH = "speedups.init.whitening"


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
        """Yields that weights that were learned would be lost."""
        yield from refuse_loaded_weights(recipe, name="whitening")

    def check_model(self, model: "nn.Module") -> None:
        """Raises: ConfigError if the network does not begin with a convolution of whole patches."""
        from tune_speed.components.speedups.modules.patches import first_conv

        conv = first_conv(model)
        if conv is None or conv.groups != 1 or conv.out_channels < 2:
            raise refusal(
                PATH,
                must="must have a network that begins with a convolution, not in groups, of two or"
                " more filters",
                given=type(model).__name__,
            )
        if self.bias_frac < 1 and conv.bias is None:
            raise refusal(
                f"{PATH}.bias_frac",
                must="must be 1 where the first convolution has no bias",
                given=f"{self.bias_frac:g}, with {type(model).__name__}",
                hint="Leave it out, or try model: speednet.",
            )

    def speed_fields(self) -> dict[str, Any]:
        """Returns whether the first convolution needs no gradient."""
        return {"frozen": True} if self.frozen else {}

    def change_model(self, model: "nn.Module", *, num_classes: int, seed: int) -> "nn.Module":
        """Returns `model`, whose first convolution's weights are not trained if `frozen`."""
        from tune_speed.components.speedups.modules.patches import first_conv

        conv = first_conv(model)
        assert conv is not None, "check_model comes before"
        conv.weight.requires_grad_(not self.frozen)
        return model

    def shape(self, shape: Shape, *, frac: float) -> Shape:
        """Returns `shape` with whether the bias is trained in a step that begins there."""
        return shape._replace(is_bias_frozen=frac >= self.bias_frac)

    def begin_step(self, model: "nn.Module", shape: Shape) -> None:
        """Lets the first convolution's bias be trained, or not."""
        from tune_speed.components.speedups.modules.patches import first_conv

        if self.bias_frac == 1:
            return
        conv = first_conv(model)
        assert conv is not None and conv.bias is not None, "check_model comes before"
        conv.bias.requires_grad_(not shape.is_bias_frozen)

    def init_weights(self, model: "nn.Module", start: Start) -> None:
        """Sets the filters of the first convolution from the first images of epoch 0."""
        from tune_speed.components.speedups.modules.patches import (
            first_conv,
            set_filters,
            statistics,
        )

        conv = first_conv(model)
        assert conv is not None, "check_model comes before"
        images = (images for images, _ in start.batches(0))
        _, covariance = statistics(conv, images, count=min(self.images, start.num_train))
        set_filters(conv, covariance, eps=self.eps)
