"""The momentum that weights really show, and the loop that holds it at its target.

Under asynchrony gradients arrive late, which acts like more momentum. It is measured on the weights
x themselves: with rate a, momentum m and staleness s, from x_{t-s}, x_{t-s-1}, x_{t-s-2}.

Source: Zhang and Mitliagkas, arXiv 1706.03471, section 4 and algorithm 5.
"""

import torch
from torch import Tensor

GAIN = 0.01
"""Share of the difference that the loop takes back in each step (the paper's gamma)."""


def total_momentum(velocity: Tensor, previous_velocity: Tensor, gradient: Tensor) -> Tensor:
    """Returns the median over coordinates of (velocity - gradient) / previous_velocity, shape `()`.

    A velocity is a step divided by minus its rate: (x_{t-s-1} - x_{t-s}) / a and, before that,
    (x_{t-s-2} - x_{t-s-1}) / a. The paper's formula is the same fraction times -a; divided by the
    rate, it also holds where the rate changes and momentum acts as in torch's SGD.
    NaN where no coordinate moved before.

    Args:
        velocity: that of the step to x_{t-s}, shape `(N,)`.
        previous_velocity: that of the step before, shape `(N,)`.
        gradient: at x_{t-s-1}, shape `(N,)`.
    """
    return torch.nanmedian((velocity - gradient) / previous_velocity)


def next_correction(correction: Tensor, *, target: Tensor, measured: Tensor) -> Tensor:
    """Returns the next amount to add to the target momentum, shape `()`.

    correction + GAIN * (target - measured); unchanged where the measurement is not finite.
    For a fixed target this is the paper's m <- m + GAIN * (target - measured), m being
    target + correction. Where the target moves, m follows it at once; so without staleness, where
    the measured momentum is m, the correction stays 0.
    """
    moved = correction + GAIN * (target - measured)
    return torch.where(measured.isfinite(), moved, correction)
