"""Whether a network takes images of any size."""

import copy

import torch
from torch import nn

from tune_speed.components.speedups.modules.patches import first_conv

# Sides of images [pixels] that are tried; networks without global pooling take one of them.
SIDES = (32, 64, 96, 128, 48, 192, 224, 160, 256, 16, 28, 8)


def why_one_size(model: nn.Module) -> Exception | None:
    """Returns with what error the network refuses images of all sizes but one, if it does."""
    # It runs where its weights are: on torch's meta device not every network can.
    first = first_conv(model)
    if first is None:
        return TypeError("it has no convolution")
    network = copy.deepcopy(model).eval()
    num_taken, last_error = 0, None
    for side in SIDES:
        error = _error_of(network, first.weight.new_zeros(1, first.in_channels, side, side))
        num_taken += error is None
        last_error = error or last_error
        if num_taken == 2:
            return None
    return last_error


def _error_of(network: nn.Module, images: torch.Tensor) -> Exception | None:
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            network(images)
    # Networks refuse images by RuntimeError, ValueError, AssertionError, TypeError and others.
    except Exception as error:
        return error
    return None
