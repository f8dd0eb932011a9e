"""A first convolution that whitens the patches of the images."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from tune_speed.components.speedups.base import RecipeView, Slot, SpeedupConfig, Start, refusal
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
