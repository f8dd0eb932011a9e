"""Adam that becomes SGD when the rate that SGD should have is known."""

from typing import TYPE_CHECKING

from pydantic import Field

from tune_speed.components.optim.base import OptimizerConfig, fused_or_default

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class Swats(OptimizerConfig):
    r"""SWATS: Adam, which switches to SGD at the rate that Adam's steps turn out to amount to.

    With p the step that Adam takes and g the gradient, over all weights together, the rate at
    which SGD's step, projected on p, would be p is

        r = p.p / (-p.g),   and its debiased running mean (factor beta2) is R.

    After the first step k > 1 with |R - r| < switch_tolerance * R, or several such steps in a row,
    all weights continue with v <- beta1 v + g,  w <- w - (1 - beta1) R v,  from v = 0. Weight decay
    is part of g throughout.

    Before the switch the host waits for the device once a step, because it must know which of the
    two to launch; after it, never. (So a step time that is measured beforehand is Adam's.) The
    schedule's factor is divided out of r and multiplies R.

    Source: Keskar and Socher, arXiv 1712.07628, algorithm 1. Deviations: the tolerance is relative
    to R (the paper's absolute 1e-9 hardly ever fires on noisy gradients); R must be above 0; eps is
    added after the bias correction, as in torch.optim.Adam, whose code the first phase is.
    """

    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Memory of the mean gradient, and momentum after the switch, in [0, 1); a schedule that cycles
    the momentum replaces it."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Memory of the mean squared gradient and of the rate's running mean, in [0, 1)."""
    eps: float = Field(default=1e-9, gt=0)
    """Keeps Adam's divisor from 0, above 0."""
    switch_tolerance: float = Field(default=1e-3, gt=0, lt=1)
    """Largest relative difference of the rate and its running mean at the switch, in (0, 1);
    1e-9 to 1e-2 is worth a search."""
    switch_steps_in_row: int = Field(default=1, ge=1)
    """Steps in a row that the difference must stay so small, from 1: ratios that spread pass their
    mean by chance. Runs record mean and spread as `swats_rate` and `swats_spread`."""
    switch_at_step: int | None = Field(default=None, ge=1)
    """Optimizer step, from 1, after which the switch is made at the latest, if the running mean is
    above 0 there (otherwise as soon as it is); null: by the tolerance alone."""

    def build(self, model: "nn.Module", *, effective_batch_size: int, fused: bool) -> "Optimizer":
        """Returns the optimizer; its `switch` has the step and rate of the switch."""
        from tune_speed.components.optim.torch.swats import SwatsOptimizer

        return SwatsOptimizer(
            self.groups(model, effective_batch_size),
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            switch_tolerance=self.switch_tolerance,
            switch_steps_in_row=self.switch_steps_in_row,
            switch_at_step=self.switch_at_step,
            fused=fused_or_default(fused),
        )
