"""Stochastic gradient descent with momentum."""

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from tune_speed.components.optim.base import (
    LrScales,
    OptimizerConfig,
    fused_or_default,
    with_bias_lr,
    with_lr_scales,
)

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class Sgd(OptimizerConfig):
    r"""SGD with momentum m, in torch's form: the rate multiplies the momentum buffer b.

    With gradient g, weights w and weight decay d, one step of rate lr is

        g <- g + d w                   (decoupled: w <- w - lr d w instead)
        b <- m b + g                   (first step: b <- g)
        w <- w - lr (g + m b)          (without nesterov: w <- w - lr b)

    Source: Sutskever et al., "On the importance of initialization and momentum in deep learning",
    2013; decoupled: Loshchilov and Hutter, arXiv 1711.05101, as timm's SGDW, where d is scaled by
    the rate of the step (the paper scales it by the schedule alone). SGDW has no fused kernels.
    """

    switch_fields = OptimizerConfig.switch_fields | {"momentum", "bias_lr"}

    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum, in [0, 1); a schedule that cycles the momentum replaces it."""
    nesterov: bool = True
    """Nesterov's form of momentum; needs a momentum above 0."""
    decoupled_weight_decay: bool = False
    """Shrink the weights separately from the step instead of adding the decay to the gradient."""
    bias_lr: float | None = Field(default=None, gt=0)
    """Rate of norms and biases, the tensors of at most one dimension, above 0, in the unit of `lr`;
    null: `lr`. The CIFAR-10 record's SGD variant (airbench94) has 64 times `lr` for norms."""

    lr_scales: LrScales = ()

    @model_validator(mode="after")
    def _check_nesterov(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("`momentum` must be above 0 where `nesterov` is true")
        return self

    def build(self, model: "nn.Module", *, effective_batch_size: int, fused: bool) -> "Optimizer":
        """Returns torch's SGD, or timm's SGDW for decoupled decay."""
        groups = self.groups(model, effective_batch_size)
        settings: dict[str, Any] = {"momentum": self.momentum, "nesterov": self.nesterov}
        if self.decoupled_weight_decay:
            from timm.optim import SGDW

            sgdw: Optimizer = SGDW(groups, **settings)
            return sgdw
        from torch.optim import SGD

        from tune_speed.components.optim.torch.tensor_lists import momentum_buffers

        optimizer = SGD(groups, **settings, fused=fused_or_default(fused))
        if fused:
            # Torch makes buffers as gradients come, but its fused kernel fails where some weights
            # had one before others, as with blocks that are skipped at random. Without momentum
            # too: a schedule may give some.
            for group in optimizer.param_groups:
                momentum_buffers(optimizer, group["params"])
        return optimizer

    def is_recordable(self, *, fused: bool, is_scaled: bool) -> bool:
        """Returns whether its kernels are the fused ones: others take rates from the host."""
        return fused and not self.decoupled_weight_decay

    def groups(self, model: "nn.Module", effective_batch_size: int) -> list[dict[str, Any]]:
        """Returns the groups of every optimizer, split where tensors have rates of their own."""
        rate = self.bias_lr and self.rate_of_step(self.bias_lr, effective_batch_size)
        groups = with_bias_lr(super().groups(model, effective_batch_size), rate)
        return with_lr_scales(groups, model, self.lr_scales)
