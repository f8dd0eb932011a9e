"""Expected time to target with restarts, and what another run would teach about it.

Runs of one configuration differ, so what counts is not the time of its fastest run but the time
until a run meets the target when each miss is begun again (Dubey et al. 2019 call it T/p):

    fixed length:  E(x) = c / p · max(1, 0.9 / p),         p = P(y ≥ 0)
    free length:   E(x) = min_k ∫₀^τ_k (1 − F(t)) dt / F(τ_k),    F(t) = P(y(t) ≥ 0)

with c the time of a run, y the distance to the target of one run (see `curve_table`), and F known
at fractions τ of the time to beat. The latter is the best of the restarts after a fixed time (Luby
et al. 1993), between linear pieces of F. We differ in the second factor: a recipe whose runs often
miss is of less use than its T/p says, and short runs that are met by luck alone would win by it.

The model has y = f(x) + ε with ε ~ N(0, n(f)²), and f(x) ~ N(m, s²) by what has been seen. The
spread of the metric is the same near the target and far from it, y is not: its scale is logarithmic
there, so a normal on it would let far too many runs jump over the target. So that P(y ≥ 0 | f) is
that of the metric, with n = n(0)

    n(f) = n |f| / (exp |f| − 1).

A further run moves m by s²/√(s² + n²) times a standard normal z, and leaves of s² the part
s²n²/(s² + n²).
Its worth is the knowledge gradient (Frazier et al. 2009) of ln E of what is recommended:

    gain(x) = E_z[max(0, ln E* − ln E(x | z))],     E* the least expected time of the others;

of the recommended configuration itself, what is lost by then going over to the next is not lost.
Without noise it is the expected improvement of ln c. Where the metric counts and not the time, −f
takes the place of ln E, and the same expectation has a closed form (`gain_of_metric`).
"""

import numpy as np
from scipy.special import ndtr

from tune_speed.tuning.policy.curve import FloatArray

# z, denser than a quadrature for smooth functions: without noise, E(x | z) is a step.
Z = np.linspace(-3.0, 6.0, 128)
WEIGHTS = np.exp(-(Z**2) / 2) / np.exp(-(Z**2) / 2).sum()
LEAST_CHANCE = 1e-12
RELIABLE = 0.9
"""Chance below which a miss counts more."""


def doubt(chances: FloatArray) -> FloatArray:
    """Returns by how much the expected times of runs with these chances count more: ln, ≥ 0."""
    counted: FloatArray = np.maximum(np.log(RELIABLE / np.maximum(chances, LEAST_CHANCE)), 0.0)
    return counted


def noise_at(mean: FloatArray, noise_sd: float) -> FloatArray:
    """Returns n(f), the standard deviation between runs at this mean of theirs."""
    far = np.clip(np.abs(mean), 1e-9, 50.0)
    spread: FloatArray = noise_sd * far / np.expm1(far)
    return np.maximum(spread, 1e-9)


def log_expected_s(
    mean: FloatArray,
    sd: FloatArray,
    noise_sd: float,
    *,
    log_cost: FloatArray | None,
    fractions: FloatArray,
) -> FloatArray:
    """Returns ln E (...,) of runs whose f is N(mean, sd²): mean (..., K), sd (...,).

    `log_cost` (...,) is ln c; None: the length is free, and E is a share of the time to beat.
    """
    chances = ndtr(mean / np.hypot(sd[..., None], noise_at(mean, noise_sd)))
    if log_cost is not None:
        chance = np.maximum(chances[..., 0], LEAST_CHANCE)
        first: FloatArray = log_cost - np.log(chance) + doubt(chance)
        return first
    # Fractions fall from 1: turned round, F rises with time.
    times, reached = fractions[::-1], np.minimum.accumulate(chances, axis=-1)[..., ::-1]
    times = np.concatenate([[times[0] / 2], times])
    reached = np.concatenate([np.zeros_like(reached[..., :1]), reached], axis=-1)
    left = 1 - (reached[..., 1:] + reached[..., :-1]) / 2
    spent = times[0] + np.cumsum(left * np.diff(times), axis=-1)
    free: FloatArray = np.log(spent / np.maximum(reached[..., 1:], LEAST_CHANCE)).min(axis=-1)
    return free


def gain_of_run(
    mean: FloatArray,
    sd: FloatArray,
    noise_sd: float,
    *,
    log_cost: FloatArray | None,
    fractions: FloatArray,
    to_beat: FloatArray,
) -> FloatArray:
    """Returns E_z[max(0, to_beat − ln E(x | z))] of one run each: (M,).

    `mean` (M, K) and `sd` (M,) are f's, `to_beat` (M,) is the ln E of the best other one.
    """
    noise = noise_at(mean[:, 0], noise_sd)
    moved = sd**2 / np.hypot(sd, noise)
    left = sd * noise / np.hypot(sd, noise)
    after = log_expected_s(
        mean[None] + (Z[:, None] * moved)[..., None],
        np.broadcast_to(left, (len(Z), len(sd))),
        max(noise_sd, 1e-6),
        log_cost=log_cost,
        fractions=fractions,
    )
    gain: FloatArray = WEIGHTS @ np.maximum(to_beat - after, 0.0)
    return gain


def gain_of_metric(
    mean: FloatArray, sd: FloatArray, noise_sd: float, *, to_beat: FloatArray
) -> FloatArray:
    """Returns E_z[max(0, to_beat + f(x | z))] of one run each: (M,); `to_beat` (M,) is the best −f.

    With u = (m + to_beat) / d and d = s² / √(s² + n²), by which a run moves m, it is d (u Φ(u) +
    φ(u)): the expected improvement (Jones et al. 1998) of the posterior mean.
    """
    moved = np.maximum(sd**2 / np.maximum(np.hypot(sd, noise_sd), 1e-12), 1e-12)
    u = (mean + to_beat) / moved
    gain: FloatArray = moved * (u * ndtr(u) + np.exp(-(u**2) / 2) / np.sqrt(2 * np.pi))
    return np.maximum(gain, 0.0)
