"""Weights by the rule of Kaiming He et al."""

import math

from torch import nn

from tune_speed.components.speedups.modules.residual import find_blocks

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm)


def draw_weights(model: nn.Module) -> None:
    """Draws the weights of convolutions, and sets norms to 1 and 0 and biases to 0, in place."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
            module.weight.data.normal_(0, math.sqrt(2 / fan_out))
        elif isinstance(module, NORMS) and module.weight is not None:
            module.weight.data.fill_(1)
        bias = getattr(module, "bias", None)
        if isinstance(bias, nn.Parameter):
            bias.data.zero_()


def last_norms(model: nn.Module) -> list[nn.BatchNorm2d]:
    """Returns the norm at the end of each residual block's branch, where there is one.

    Blocks that end with a convolution (pre-activation) have none: a scale of 0 before their last
    ReLU would have no gradient, and stay.
    """
    lasts = (_last_layer(block.module) for block in find_blocks(model))
    return [last for last in lasts if isinstance(last, nn.BatchNorm2d)]


def _last_layer(block: nn.Module) -> nn.Module:
    """Returns the convolution or norm that was registered last in the block itself."""
    layers = [m for m in block.children() if isinstance(m, nn.Conv2d | nn.BatchNorm2d)]
    return layers[-1]
