"""The chance that another run of a configuration meets the target, and how far to trust it.

With y the distance of a run to the target (see `curve`), f what the model expects of it, and k hits
in n runs,

    u(y) = u(f) + σ τ,    f ~ N(m, s²),    σ² ~ ν σ₀² / χ²_ν,    τ ~ Student's t with κ degrees,

with u = ±(exp |y| − 1) the metric's distance in units of `curve`, so that p = P(u(f) + σ τ ≥ 0) is
known for each f and σ of a grid. The model may be wrong, however many runs agree with it: for a
share ε, p is as counting alone has it, the posterior of Jeffreys' Beta(½, ½). The chance is the
mean of both, its interval lies between their quantiles.

Source: Gelman et al., Bayesian Data Analysis, sections 2.8 (Jeffreys' prior) and 3.2 (a normal with
unknown variance); Stone 1961 (a linear pool). ν, κ and ε were chosen by what searches said of
recorded and simulated trainings (see tests/benchmarks).
"""

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, ndtri, stdtr

from tune_speed.core.text import Interval
from tune_speed.tuning.policy.curve import FloatArray

LEAST_FREEDOM = 6.0
"""ν before any configuration was run twice."""
TAILS = 5.0
"""κ"""
DOUBT = 0.15
"""ε"""
CONFIDENCE = 0.95


def _places(num: int) -> FloatArray:
    return (np.arange(num) + 0.5) / num


F, SPREADS, ANY = ndtri(_places(32)), _places(8), np.sin(np.pi / 2 * _places(100)) ** 2
"""Standard normal values of f, quantiles of σ, and values of Beta(½, ½)."""


def chances(
    mean: FloatArray,
    sd: FloatArray,
    *,
    noise_sd: float,
    repeats: float,
    hits: npt.NDArray[np.int_],
    runs: npt.NDArray[np.int_],
) -> list[Interval]:
    """Returns the chance of a further run of each of C configurations, with 95 %.

    `mean` and `sd` (C,) are m and s, `noise_sd` σ₀, `hits` and `runs` (C,) k and n; `repeats` are
    the runs beyond the first ones of their configurations, from which the noise is known.
    """
    freedom = LEAST_FREEDOM + repeats
    sigma = max(noise_sd, 1e-9) * np.sqrt(freedom / chdtri(freedom, SPREADS))
    f = mean[:, None] + sd[:, None] * F
    u = np.sign(f) * np.expm1(np.minimum(np.abs(f), 50.0))
    ours = stdtr(TAILS, u[:, :, None] / sigma).reshape(len(mean), -1)
    counted = ANY ** hits[:, None] * (1 - ANY) ** (runs - hits)[:, None]
    counted *= DOUBT / counted.sum(axis=1, keepdims=True)
    shares = np.concatenate([ours, np.broadcast_to(ANY, counted.shape)], axis=1)
    weights = np.concatenate([np.full_like(ours, (1 - DOUBT) / ours.shape[1]), counted], axis=1)
    return [_interval(*each) for each in zip(shares, weights, strict=True)]


def _interval(shares: FloatArray, weights: FloatArray) -> Interval:
    order = np.argsort(shares)
    reached = np.cumsum(weights[order]) - weights[order] / 2
    low, high = np.interp([0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2], reached, shares[order])
    return Interval(float(shares @ weights), float(low), float(high))
