"""Residual networks that are trained block after block, then as a whole."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from tune_speed.components.speedups.base import RecipeView, Shape, Slot, SpeedupConfig, refusal
from tune_speed.core.errors import Problem

if TYPE_CHECKING:
    from torch import Tensor, nn

PATH = "speedups.depth.boosted"


class Boosted(SpeedupConfig):
    """BoostResNet: one block after the other learns with a classifier of its own, then all.

    In stage t the blocks of the stage and an auxiliary head, a linear layer on the pooled
    features, are trained; the first stage trains the stem too, the last one has the network's own
    head. Earlier blocks are frozen: they run without gradients and by their running statistics.
    Later blocks are not computed, so a step's backward pass costs one stage, its forward pass
    those up to it. At last, for `refine_frac` of the run, the whole network is trained with plain
    cross-entropy; the auxiliary heads are of no use any more. Each part of the run begins with
    momentum 0. Evaluation takes what is trained so far, up to the stage's head.

    Loss of a stage, with logits z of the K classes: the multiclass exponential loss
    Σ_{l≠y} exp(z_l − z_y) = exp(cross-entropy) − 1, divided by K, so that a sample about which
    nothing is known weighs as much as in cross-entropy. Beyond a sample's weight of `max_weight`
    it continues as a straight line.

    Source: Huang, Ash, Langford, Schapire, arXiv 1706.04964, and their code,
    JordanAsh/boostresnet.
    Deviations: stages have equal shares of the run instead of ending when the edge γ_t is large
    enough, because a run's cost must be known before it begins; α is part of the head's scale; the
    loss is a mean over samples of exp(cross-entropy), not exp of the mean, and its straight line
    replaces the clamped gradients; heads normalise over classes, not over the batch, and frozen
    blocks keep no graph, both of which that code gets wrong.
    """

    slot: ClassVar[Slot] = "depth"
    untimed_fields = frozenset({"refine_frac", "max_weight"})
    is_recordable: ClassVar[bool] = False
    leaves_gradients_out: ClassVar[bool] = True
    conflicts: ClassVar[dict[str, str]] = {
        "pretrain_subset": "pretraining would train the blocks of the first stage alone.",
    }

    stages: int = Field(default=9, ge=1, le=1000)
    """Parts into which the blocks are divided, at most as many as there are; ResNet-20 has 9."""
    refine_frac: float = Field(default=0.2, ge=0, le=0.9)
    """Share of the run, at its end, in which the whole network is trained."""
    loss: Literal["exponential", "cross_entropy"] = "exponential"
    """What the stages minimise."""
    max_weight: float = Field(default=4.0, ge=1, le=1e6)
    """Largest weight of a sample in the exponential loss; 1 is what it weighs at first."""

    def refusals(self, recipe: RecipeView) -> Iterator[Problem]:
        """Yields that a compiled network cannot change its stage."""
        if recipe.compile is True:
            yield Problem(
                path="compile",
                must="must be false with boosted: every stage is another network, and torch stops"
                " compiling after eight",
                given="true",
            )

    def check_model(self, model: "nn.Module") -> None:
        """Raises: ConfigError if the network has no stem, blocks and head, or too few blocks."""
        from tune_speed.components.speedups.modules.staged import is_staged_net

        if not is_staged_net(model):
            raise refusal(
                PATH,
                must="must have a residual network for CIFAR, which consists of stem, blocks and"
                " head",
                given=type(model).__name__,
            )
        num_blocks = len(model.blocks)
        if self.stages > num_blocks:
            must = f"must have at most as many stages as the network has blocks, {num_blocks}"
            raise refusal(PATH, must=must, given=f"stages={self.stages}")

    def change_model(self, model: "nn.Module", *, num_classes: int, seed: int) -> "nn.Module":
        """Returns the network with its auxiliary heads; it begins in the first stage."""
        from tune_speed.components.speedups.modules.staged import Staged, is_staged_net

        assert is_staged_net(model)
        return Staged(model, num_stages=self.stages, num_classes=num_classes)

    def shape(self, shape: Shape, *, frac: float) -> Shape:
        """Returns `shape` with the stage in 0…stages − 1, or `stages` for the whole network."""
        # Rounding must not lend a step to the stage before.
        stage = int(frac / (1 - self.refine_frac) * self.stages + 1e-9)
        last = self.stages if self.refine_frac > 0 else self.stages - 1
        return shape._replace(stage=min(stage, last))

    def begin_step(self, model: "nn.Module", shape: Shape) -> None:
        """Lets the stage's blocks and head be trained, and nothing else."""
        from tune_speed.components.speedups.modules.staged import set_stage

        set_stage(model, shape.stage)

    def sum_of_losses(
        self, logits: "Tensor", labels: "Tensor", *, frac: float, label_smoothing: float
    ) -> "Tensor | None":
        """Returns the sum of the exponential losses, or None in the steps that refine."""
        from tune_speed.components.speedups.modules.losses import sum_of_exponential_losses

        if self.loss == "cross_entropy" or frac > 1 - self.refine_frac + 1e-9:
            return None
        return sum_of_exponential_losses(
            logits, labels, max_weight=self.max_weight, label_smoothing=label_smoothing
        )
