"""Weights drawn so that a ReLU network keeps the size of its gradients."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from tune_speed.components.speedups.base import RecipeView, Slot, SpeedupConfig, Start, refusal
from tune_speed.core.errors import Problem

if TYPE_CHECKING:
    from torch import nn

PATH = "speedups.init.kaiming"


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
        """Yields that weights that were learned would be lost."""
        yield from refuse_loaded_weights(recipe, name="kaiming")

    def check_model(self, model: "nn.Module") -> None:
        """Raises: ConfigError if `zero_init_last` finds no residual block that ends with a norm."""
        from tune_speed.components.speedups.modules.kaiming import last_norms

        if self.zero_init_last and not last_norms(model):
            raise refusal(
                f"{PATH}.zero_init_last",
                must="must have a network with residual blocks that end with a batch norm",
                given=type(model).__name__,
            )

    def init_weights(self, model: "nn.Module", start: Start) -> None:
        """Draws the weights, in place, from torch's generator."""
        from tune_speed.components.speedups.modules.kaiming import draw_weights, last_norms

        draw_weights(model)
        if self.zero_init_last:
            for norm in last_norms(model):
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
