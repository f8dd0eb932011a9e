"""Stochastic gradient descent with momentum."""

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from tune_speed.components.optim.base import OptimizerConfig, fused_or_default, with_bias_lr

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

    @model_validator(mode="after")
    def _check_nesterov(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("`momentum` must be above 0 where `nesterov` is true")
        return self

    def build(self, model: "nn.Module", *, effective_batch_size: int, fused: bool) -> "Optimizer":
        """Returns torch's SGD, or timm's SGDW for decoupled decay."""
        if self.decoupled_weight_decay:
            return self._sgdw(model, effective_batch_size)
        from torch import zeros_like
        from torch.optim import SGD

        optimizer = SGD(
            self.groups(model, effective_batch_size),
            momentum=self.momentum,
            nesterov=self.nesterov,
            fused=fused_or_default(fused),
        )
        if fused and self.momentum:
            # Torch makes buffers as gradients come, but its fused kernel fails where some weights
            # had one before others, as with blocks that are skipped at random.
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    optimizer.state[parameter]["momentum_buffer"] = zeros_like(parameter)
        return optimizer

    def groups(self, model: "nn.Module", effective_batch_size: int) -> list[dict[str, Any]]:
        """Returns the groups of every optimizer, norms and biases apart if they have a rate."""
        rate = self.bias_lr and self.rate_of_step(self.bias_lr, effective_batch_size)
        return with_bias_lr(super().groups(model, effective_batch_size), rate)

    def _sgdw(self, model: "nn.Module", effective_batch_size: int) -> "Optimizer":
        from timm.optim import SGDW

        optimizer: Optimizer = SGDW(
            self.groups(model, effective_batch_size),
            momentum=self.momentum,
            nesterov=self.nesterov,
        )
        return optimizer
