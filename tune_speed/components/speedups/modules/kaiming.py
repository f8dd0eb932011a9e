"""Weights by the rule of Kaiming He et al."""

import math

from torch import nn

from tune_speed.components.speedups.modules.heads import heads_of
from tune_speed.components.speedups.modules.residual import find_blocks

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm)


def draw_weights(model: nn.Module) -> None:
    """Draws the weights of convolutions, and sets norms to 1 and 0 and biases to 0, in place.

    Weights of a convolution that gives the logits, from one pixel each, stay as they are.
    """
    heads = [layer for _, layer in heads_of(model)]
    for module in model.modules():
        is_head = module in heads and getattr(module, "kernel_size", (1, 1)) == (1, 1)
        if isinstance(module, nn.Conv2d) and not is_head:
            fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
            module.weight.data.normal_(0, math.sqrt(2 / fan_out))
        elif isinstance(module, NORMS) and module.weight is not None:
            module.weight.data.fill_(1)
        bias = getattr(module, "bias", None)
        if isinstance(bias, nn.Parameter):
            bias.data.zero_()


def last_norms(model: nn.Module) -> list[nn.BatchNorm2d]:
    """Returns the norm at the end of each residual block's branch, where there is one."""
    kinds = nn.Conv2d | nn.BatchNorm2d
    children = [list(block.module.children()) for block in find_blocks(model)]
    lasts = ([layer for layer in layers if isinstance(layer, kinds)][-1] for layers in children)
    # Blocks that end with a convolution (pre-activation) have none: a scale of 0 before their last
    # ReLU would have no gradient, and stay.
    return [last for last in lasts if isinstance(last, nn.BatchNorm2d)]
