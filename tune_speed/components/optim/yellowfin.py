"""SGD that finds its rate and momentum by itself."""

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from tune_speed.components.optim.base import OptimizerConfig

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class YellowFin(OptimizerConfig):
    """YellowFin: SGD whose rate and momentum follow from the gradients' size, spread and mean.

    In each step it estimates the range of curvature, the gradient's variance and the distance to
    the optimum, takes the momentum and rate that minimise the expected distance after a step on a
    noisy quadratic, raises the rate slowly over the first 10 * window steps, and steps as torch's
    SGD. `lr` is a factor on that rate, the paper's `lr_factor`: 1 leaves YellowFin alone. A
    schedule's factor multiplies it too; a schedule's momentum has no effect. Weight decay is part
    of the gradient, also of the one that the estimates see. It costs about five more passes over
    the gradient than SGD; nothing in a step waits for the device.

    Source: Zhang and Mitliagkas, "YellowFin and the art of momentum tuning", arXiv 1706.03471;
    JianGoForIt/YellowFin_Pytorch, without its restoring of checkpoints and its options
    (auto_clip_fac, force_non_inc_step, sparsity_debias); clip_thresh is the recipe's clip_norm.
    """

    untimed_fields = OptimizerConfig.untimed_fields | {"beta"}

    lr: float = Field(default=1.0, gt=0)
    """Factor on the rate that YellowFin finds, above 0; 1 is YellowFin's own."""
    beta: float = Field(default=0.999, ge=0, lt=1)
    """Memory of all running means, in [0, 1)."""
    window: int = Field(default=20, ge=1)
    """Steps over which the least and largest squared norm of the gradient are taken."""
    clip: bool = True
    """From the third step on: clip the norm to sqrt(100 h_max) before the estimates, a gradient
    with squared norm of h_max or more to norm sqrt(h_max) before the step, and the rate so that
    rate * norm <= 100, with the largest curvature h_max of the step before."""
    closed_loop: bool = False
    """Measure the momentum that the weights show, and lower the one applied where the two differ,
    as under asynchronous training (algorithm 5). Only for asynchronous loops of your own, at the
    cost of four more copies of the weights and a median over them: without `staleness` the two are
    equal, and a recipe's training has none."""
    staleness: int = Field(default=0, ge=0, le=100)
    """Steps taken between the weights that a gradient is of and the step that it is applied in, for
    `closed_loop`. Algorithm 5 has it from asynchronous workers. Every training of a recipe is
    synchronous, with accumulation and several devices too: another than 0 would pair steps with
    gradients of other weights."""

    @model_validator(mode="after")
    def _check_loop(self) -> Self:
        if self.closed_loop and not self.staleness:
            raise ValueError(
                "`closed_loop` must be false where `staleness` is 0: gradients of the weights that"
                " they are applied to show the momentum that was applied, and nothing is corrected"
            )
        return self

    def rate_factor(self, samples: int, *, of: int) -> float:
        """Returns 1: it finds the rate of the steps that it takes."""
        return 1.0

    def build(self, model: "nn.Module", *, effective_batch_size: int, fused: bool) -> "Optimizer":
        """Returns the optimizer; `fused` is of no use to it: its rate is known on the device."""
        from tune_speed.components.optim.torch.yellowfin import YellowFinOptimizer

        fields = self.model_dump(include={"beta", "window", "clip", "closed_loop", "staleness"})
        return YellowFinOptimizer(self.groups(model, effective_batch_size), **fields)
