"""Adam, whose weight decay acts beside the step."""

from typing import TYPE_CHECKING

from pydantic import Field

from tune_speed.components.optim.base import OptimizerConfig, fused_or_default

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class AdamW(OptimizerConfig):
    """Adam with decoupled weight decay: before each step, w <- w - lr * weight_decay * w.

    The rate is that of the step, so that a schedule scales the decay too.

    Source: Loshchilov and Hutter, arXiv 1711.05101; the code is torch.optim.AdamW, whose default
    decay is 0.01 (ours is 0, as for every optimizer).
    """

    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Memory of the mean gradient, in [0, 1); a schedule that cycles the momentum replaces it."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Memory of the mean squared gradient, in [0, 1)."""
    eps: float = Field(default=1e-8, gt=0)
    """Keeps the divisor from 0, above 0."""

    def build(self, model: "nn.Module", *, effective_batch_size: int, fused: bool) -> "Optimizer":
        """Returns torch's AdamW."""
        import torch

        return torch.optim.AdamW(
            self.groups(model, effective_batch_size),
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            fused=fused_or_default(fused),
        )
