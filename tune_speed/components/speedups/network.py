"""Which parts of the network a step trains, and how much of the gradient it computes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from tune_speed.components.speedups import modules
from tune_speed.components.speedups.base import RecipeView, Shape, Slot, SpeedupConfig, refusal
from tune_speed.core.errors import Problem

if TYPE_CHECKING:
    from torch import Tensor, nn


class DropoutRemoval(SpeedupConfig):
    """Switches off every dropout of the network: less noise, at the risk of overfitting.

    It means something only where the model drops: torchvision's EfficientNet and MobileNets (0.2),
    VGG, AlexNet and SqueezeNet (0.5) do so by default; the models of timm, and ours, drop nothing
    unless the recipe's model says so.

    Source: the blog post "Training Time Speed Ups": a stochastic step like dropout, removed, can
    shorten training; dropout itself: Srivastava et al., JMLR 15, 2014.
    """

    slot: ClassVar[Slot] = "dropout"

    include_stochastic_depth: bool = False
    """Switch off the model's own stochastic depth (`drop_path_rate`) too."""

    def check_model(self, model: "nn.Module") -> None:
        if modules.heads.active_dropouts(model, stochastic_depth=self.include_stochastic_depth):
            return
        raise refusal(
            "speedups.dropout.dropout_removal",
            must="must have a network with dropout to switch off",
            given=f"{type(model).__name__} with none",
            hint="Set the model's drop_rate or dropout above 0, or leave dropout_removal out.",
        )

    def change_model(self, model: "nn.Module", *, num_classes: int, seed: int) -> "nn.Module":
        by_depth = self.include_stochastic_depth
        for module, attribute in modules.heads.active_dropouts(model, stochastic_depth=by_depth):
            setattr(module, attribute, 0.0)
        return model


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
        if modules.residual.find_blocks(model):
            return
        raise refusal(
            "speedups.depth.stochastic_depth",
            must="must have a network with residual blocks that can be skipped: ResNets and"
            " pre-activation ResNets for CIFAR, or a ResNet of torchvision or timm",
            given=type(model).__name__,
            hint="Try model: resnet20, or drop_path_rate if the model takes it.",
        )

    def change_model(self, model: "nn.Module", *, num_classes: int, seed: int) -> "nn.Module":
        blocks = modules.residual.find_blocks(model)
        modules.residual.skip_at_random(blocks, self.survivals(len(blocks)), seed=seed)
        return model

    def begin(self, model: "nn.Module", *, seed: int) -> None:
        """Restarts the draws: warm-up and step timing have drawn, and must leave no trace."""
        modules.residual.draws_of(model).manual_seed(seed)

    def state(self, model: "nn.Module") -> dict[str, Any]:
        return {"draws": modules.residual.draws_of(model).get_state()}

    def restore(self, model: "nn.Module", state: dict[str, Any]) -> None:
        modules.residual.draws_of(model).set_state(state["draws"])


BOOSTED = "speedups.depth.boosted"


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
        if recipe.compile is True:
            yield Problem(
                path="compile",
                must="must be false with boosted: every stage is another network, and torch stops"
                " compiling after eight",
                given="true",
            )

    def check_model(self, model: "nn.Module") -> None:
        if not modules.residual.is_staged_net(model):
            raise refusal(
                BOOSTED,
                must="must have a residual network for CIFAR, which consists of stem, blocks and"
                " head",
                given=type(model).__name__,
            )
        num_blocks = len(model.blocks)
        if self.stages > num_blocks:
            must = f"must have at most as many stages as the network has blocks, {num_blocks}"
            raise refusal(BOOSTED, must=must, given=f"stages={self.stages}")

    def change_model(self, model: "nn.Module", *, num_classes: int, seed: int) -> "nn.Module":
        assert modules.residual.is_staged_net(model)
        return modules.residual.Staged(model, num_stages=self.stages, num_classes=num_classes)

    def shape(self, shape: Shape, *, frac: float) -> Shape:
        """Returns `shape` with the stage in 0…stages − 1, or `stages` for the whole network."""
        # Rounding must not lend a step to the stage before.
        stage = int(frac / (1 - self.refine_frac) * self.stages + 1e-9)
        last = self.stages if self.refine_frac > 0 else self.stages - 1
        return shape._replace(stage=min(stage, last))

    def begin_step(self, model: "nn.Module", shape: Shape) -> None:
        modules.residual.set_stage(model, shape.stage)

    def sum_of_losses(
        self, logits: "Tensor", labels: "Tensor", *, frac: float, label_smoothing: float
    ) -> "Tensor | None":
        if self.loss == "cross_entropy" or frac > 1 - self.refine_frac + 1e-9:
            return None
        return modules.losses.sum_of_exponential_losses(
            logits, labels, max_weight=self.max_weight, label_smoothing=label_smoothing
        )


class MeProp(SpeedupConfig):
    """meProp: hidden linear layers pass back the k largest output gradients only.

    For y = x Wᵀ + b the forward pass is exact. Backward, dŷ is dy with all but the k largest |dy|
    of each sample set to 0; then dx = dŷ W, dW = dŷᵀ x, and db = Σ dy as it was. `unified` keeps
    the same k outputs for the whole micro-batch, those with the largest Σ |dy| over it, so that
    both products shrink to k rows of W; without it they stay dense, and nothing is saved by
    torch's kernels. A layer with no more than k outputs is left as it is.

    The output layer is exact: the last linear layer, and any with as many outputs. VGG, AlexNet
    and transformers, where a sample is one position of one image, have hidden linear layers.
    ResNets have none; for them there is `conv_frac`, which is ours, not the paper's: a convolution
    passes back the channels with the largest Σ |dy| over micro-batch and pixels.

    Source: Sun et al., "meProp", ICML 2017, and the unified variant of their code,
    lancopku/meProp.
    Deviations: `conv_frac`; the sum that chooses the unified outputs is taken in fp32 whatever the
    precision.
    """

    slot: ClassVar[Slot] = "backward"
    is_recordable: ClassVar[bool] = False

    k: int = Field(default=80, ge=1)
    """Outputs of a layer whose gradient is passed back, at least 1."""
    unified: bool = True
    """Keep the same outputs for all samples of a micro-batch, which saves time."""
    conv_frac: float | None = Field(default=None, gt=0, lt=1)
    """Share of a convolution's output channels whose gradient is passed back, in (0, 1), at least
    one channel; null: convolutions are exact."""

    def check_model(self, model: "nn.Module") -> None:
        if modules.sparse_backward.hidden_linears(model) or (
            self.conv_frac and modules.sparse_backward.hidden_convolutions(model)
        ):
            return
        raise refusal(
            "speedups.backward.meprop",
            must="must have a network with a linear layer besides its output layer, such as VGG,"
            " AlexNet or ViT",
            given=f"{type(model).__name__} with none",
            hint=None if self.conv_frac else "Try conv_frac for a network of convolutions.",
        )

    def change_model(self, model: "nn.Module", *, num_classes: int, seed: int) -> "nn.Module":
        for name, layer in modules.sparse_backward.hidden_linears(model).items():
            sparse = modules.sparse_backward.SparseLinear(layer, k=self.k, unified=self.unified)
            model.set_submodule(name, sparse)
        if self.conv_frac is not None:
            modules.sparse_backward.sparsify_convolutions(model, frac=self.conv_frac)
        return model
