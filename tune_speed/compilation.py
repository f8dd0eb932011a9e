"""Compiles models with `torch.compile`."""

import torch
from torch import nn

from tune_speed.gradient import Forward


def compiled(model: nn.Module, *, mode: str = "default") -> Forward:
    """Returns the model's compiled forward; it is compiled at its first call with each shape.

    Args:
        model: on its device, with its weights; the forward shares them.
        mode: of `torch.compile`, such as `default`, `reduce-overhead` or `max-autotune`.
    """
    # A process that runs many trials would otherwise reach torch's limit of recompilations of one
    # function (8), after which it runs the function uncompiled.
    torch.compiler.reset()
    forward: Forward = torch.compile(model, dynamic=False, mode=mode)
    return forward
