"""Residual blocks that are left out at random while training."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from tune_speed.components.speedups.base import RecipeView, Slot, SpeedupConfig, refusal
from tune_speed.core.errors import Problem

if TYPE_CHECKING:
    from torch import nn


class StochasticDepth(SpeedupConfig):
    """Stochastic depth that saves time: a residual block that is skipped is never computed.

    Block l = 1…L with branch f_l: out = join(b_l · f_l(x), shortcut(x)), where join is mostly
    ReLU of the sum, and b_l ~ Bernoulli(p_l) is drawn once a block and micro-batch; evaluation
    takes p_l · f_l(x). With p = `survival`: p_l = p (uniform), or p_l = 1 − (l/L)(1 − p) (linear).
    The mean number of executed blocks is Σ p_l: L/2 and (3L − 1)/4 at p = 0.5.

    `drop_path_rate` of timm and torchvision draws for each image, computes what it drops, and so
    takes no less time; its linear rates begin at 0 instead of (1 − p)/L.

    Draws come from a generator on the CPU, so nothing waits for the device. All processes of a run
    skip the same blocks. The parameters of a skipped block get no gradient, so the optimizer
    leaves them alone, momentum and decay included.

    Source: Huang et al., "Deep Networks with Stochastic Depth", 2016, arXiv 1603.09382.
    """

    slot: ClassVar[Slot] = "depth"
    is_recordable: ClassVar[bool] = False
    leaves_gradients_out: ClassVar[bool] = True

    survival: float = Field(default=0.5, gt=0, le=1)
    """Probability p that the last block is executed, in (0, 1]; 1 is the plain network."""
    rule: Literal["linear", "uniform"] = "linear"
    """linear: earlier blocks survive more often. uniform: all blocks alike, which saves more."""

    def survivals(self, num_blocks: int) -> tuple[float, ...]:
        """Returns the probabilities p_l with which blocks 1…L are executed."""
        if self.rule == "uniform":
            return (self.survival,) * num_blocks
        return tuple(1 - n / num_blocks * (1 - self.survival) for n in range(1, num_blocks + 1))

    def refusals(self, recipe: RecipeView) -> Iterator[Problem]:
        """Yields that a compiled network cannot skip, and that one stochastic depth is enough."""
        if recipe.compile is True:
            yield Problem(
                path="compile",
                must="must be false with stochastic_depth: which blocks are executed changes from"
                " step to step, and each combination would be compiled",
                given="true",
            )
        if drop_path_rate := getattr(recipe.model, "drop_path_rate", None):
            yield Problem(
                path="model",
                must="must have no drop_path_rate with stochastic_depth, which drops paths itself",
                given=str(drop_path_rate),
                hint="Leave drop_path_rate out.",
            )

    def check_model(self, model: "nn.Module") -> None:
        """Raises: ConfigError if the network has no residual blocks of a kind known here."""
        from tune_speed.components.speedups.modules.residual import find_blocks

        if find_blocks(model):
            return
        raise refusal(
            "speedups.depth.stochastic_depth",
            must="must have a network with residual blocks that can be skipped: ResNets and"
            " pre-activation ResNets for CIFAR, or a ResNet of torchvision or timm",
            given=type(model).__name__,
            hint="Try model: resnet20, or drop_path_rate if the model takes it.",
        )

    def change_model(self, model: "nn.Module", *, num_classes: int, seed: int) -> "nn.Module":
        """Returns `model`, whose blocks are skipped from now on; parameters keep their names."""
        from tune_speed.components.speedups.modules.residual import find_blocks
        from tune_speed.components.speedups.modules.stochastic_depth import skip_at_random

        blocks = find_blocks(model)
        skip_at_random(blocks, self.survivals(len(blocks)), seed=seed)
        return model

    def begin(self, model: "nn.Module", *, seed: int) -> None:
        """Restarts the draws: warm-up and step timing have drawn, and must leave no trace."""
        from tune_speed.components.speedups.modules.stochastic_depth import draws_of

        draws_of(model).manual_seed(seed)

    def state(self, model: "nn.Module") -> dict[str, Any]:
        """Returns how far the draws are."""
        from tune_speed.components.speedups.modules.stochastic_depth import draws_of

        return {"draws": draws_of(model).get_state()}

    def restore(self, model: "nn.Module", state: dict[str, Any]) -> None:
        """Continues the draws."""
        from tune_speed.components.speedups.modules.stochastic_depth import draws_of

        draws_of(model).set_state(state["draws"])
