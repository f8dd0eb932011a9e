"""A cheaper run first: how much more it would tell than it costs.

A run at a cost c that is p likely to be of use was picked because no other promises more for its
price. A cheaper run of nearly the same configuration, above all a shorter one, moves p to p' before
c is spent. If the dear run follows only where that is a rise, what is gained by looking first is,
in units of the price c₁ of the look,

    V = E[(p' − p)⁺] / p · c / c₁

With y ~ N(m, s²) the dear run's distance to the target, N(0, n²) its luck, θ what it has to exceed,
and ρ the correlation of y with what the cheap run is going to show,

    p  = Φ((m − θ) / √(s² + n²))
    p' = Φ((m + ρ·s·z − θ) / √((1 − ρ²)·s² + n²)),    z ~ N(0, 1)

Source: the value of one more observation is the knowledge gradient's, Frazier 2018 (arXiv
1807.02811, section 4.2). We differ in valuing a chance instead of a mean, and in looking at cheaper
neighbours of one run only.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from tune_speed.tuning.policy.curve import FloatArray

NUM_LEVELS = 8
"""Values of a parameter that are looked at."""
CHEAPER = 0.7
"""Share of the dear run's cost that a look may take."""
MOST_TOLD = 0.999
"""Correlation that is taken for the largest: something always stays open."""
LEVELS = (np.arange(64) + 0.5) / 64
"""Quantiles at which z is taken. A quadrature for smooth functions does worse: p' may be a step."""


class Unsure(NamedTuple):
    """What is expected of a run."""

    mean: float
    """m"""
    sd: float
    """s"""
    luck_sd: float
    """n"""
    threshold: float
    """θ"""


def neighbours(units: FloatArray) -> FloatArray:
    """Returns units (8 · P, P) that differ from `units` (P,) in one parameter each."""
    levels = (np.arange(NUM_LEVELS) + 0.5) / NUM_LEVELS
    beside = np.tile(units, (len(units), NUM_LEVELS, 1))
    for i in range(len(units)):
        beside[i, :, i] = levels
    return beside.reshape(-1, len(units))


def expected_rise(run: Unsure, correlations: FloatArray) -> FloatArray:
    """Returns E[(p' − p)⁺] / p for runs of these correlations ρ (M,) with it: (M,)."""
    told = np.clip(np.abs(correlations), 0.0, MOST_TOLD)[:, None] * run.sd
    left = np.sqrt(run.sd**2 - told**2 + run.luck_sd**2)
    above, spread = run.mean - run.threshold, float(np.hypot(run.sd, run.luck_sd))
    before = float(ndtr(above / spread))
    # p' > p where z exceeds this, which may be far out: z is drawn from beyond it alone.
    is_told = told > 0
    least = np.where(is_told, above * (left / spread - 1) / np.where(is_told, told, 1.0), 0.0)
    share = ndtr(-least)
    after = ndtr((above - told * ndtri(share * LEVELS)) / left)
    gain = share * np.maximum(after - before, 0.0)
    rise: FloatArray = gain.mean(axis=1) / max(before, 1e-9)
    return rise
