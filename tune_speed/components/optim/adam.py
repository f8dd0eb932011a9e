"""Adam, whose weight decay is part of the gradient, and AdamW, whose decay is not."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from tune_speed.components.optim.base import (
    LrScales,
    OptimizerConfig,
    fused_or_default,
    with_lr_scales,
)

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class Adam(OptimizerConfig):
    """Adam with coupled (L2) weight decay: weight_decay * weight is added to the gradient.

    With gradient g and step t = 1, 2, …: m is the running mean of g (factor beta1), v that of g^2
    (factor beta2), and w <- w - lr * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps).

    Source: Kingma and Ba, arXiv 1412.6980; the code is torch.optim.Adam.
    """

    untimed_fields = OptimizerConfig.untimed_fields | {"beta1", "beta2", "eps"}

    torch_name: ClassVar[str] = "Adam"

    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Memory of the mean gradient, in [0, 1); a schedule that cycles the momentum replaces it."""
    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Memory of the mean squared gradient, in [0, 1)."""
    eps: float = Field(default=1e-8, gt=0)
    """Keeps the divisor from 0, above 0."""

    lr_scales: LrScales = ()

    def build(self, model: "nn.Module", *, effective_batch_size: int, fused: bool) -> "Optimizer":
        """Returns torch's optimizer."""
        import torch

        optimizer: Optimizer = getattr(torch.optim, self.torch_name)(
            with_lr_scales(self.groups(model, effective_batch_size), model, self.lr_scales),
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            fused=fused_or_default(fused),
        )
        return optimizer

    def is_recordable(self, *, fused: bool, is_scaled: bool) -> bool:
        """Returns whether the fused kernels know the loss scale; it is `capturable` by itself."""
        return fused or not is_scaled


class AdamW(Adam):
    """Adam with decoupled weight decay: before each step, w <- w - lr * weight_decay * w.

    The rate is that of the step, so that a schedule scales the decay too.

    Source: Loshchilov and Hutter, arXiv 1711.05101; the code is torch.optim.AdamW, whose default
    decay is 0.01 (ours is 0, as for every optimizer).
    """

    torch_name: ClassVar[str] = "AdamW"
