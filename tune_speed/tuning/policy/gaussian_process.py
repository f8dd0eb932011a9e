"""Gaussian-process regression, quick enough to be fitted before every trial.

Model, for points x in the unit cube and observations y with noise of its own for each:

    y = m + f(x) + ε,   f ~ GP(0, s² · k(r)),   ε ~ N(0, w·n² + v),
    k(r) = (1 + √5·r + 5r²/3) · exp(−√5·r),   r² = Σ_d ((x_d − x'_d) / l_d)²

with m the mean of the observations, s the scale of the function, l_d the length over which
coordinate d changes it, n the scale of the noise, w a point's share of it, and v a variance of its
own.

The logarithms of s, l, n are the maximum a posteriori under normal priors, found by L-BFGS. Source:
Rasmussen and Williams 2006, algorithm 2.1 and section 5.4.1; the prior of the lengths follows
Hvarfner et al. 2024 (arXiv 2402.02229): it grows with the root of the number of coordinates. We
differ in fixing m at the observations' mean.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController

from tune_speed.tuning.policy.curve import FloatArray

SQRT5 = math.sqrt(5.0)
# A share of the values' variance.
JITTER = 1e-8
OWN_DEGREES = 10.0
"""Repeats that the prior of the own share is worth."""
LEAST_OWN = 0.1
"""Of a run's variance. With 0.02, four hundred neighbours outvoted a configuration's own misses."""


class Scales(NamedTuple):
    """Logarithms of the model's scales, for observations of unit variance."""

    log_signal: float
    log_noise: float
    log_lengths: FloatArray
    """(D,)"""
    own: float = 0.1
    """Share of the noise's variance that is a configuration's own, the same in all of its runs: f
    is smoother than what is searched."""


# Means and standard deviations of the logarithms a priori; the lengths' mean in one dimension.
SIGNAL_PRIOR = (0.0, 1.0)
# Runs differ by a fifth to a half of what configurations do. With less, the first hit was believed.
NOISE_PRIOR = (math.log(0.3), 0.7)
LENGTH_PRIOR = (math.log(0.5), 0.8)


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs the block's linear algebra (BLAS) on one thread."""
    # A proposal with 500 finished trials takes 24 ms so, and 54 ms on two threads of a busy machine
    # with two cores: synchronising costs more than matrices of that size gain.
    with _threads().limit(limits=1, user_api="blas"):
        yield


@cache
def _threads() -> ThreadpoolController:
    # Finds the libraries that are loaded by now, so late: after NumPy's and SciPy's.
    return ThreadpoolController()


class GaussianProcess:
    """The posterior given the observations that it was made with."""

    def __init__(
        self,
        points: FloatArray,
        values: FloatArray,
        variances: FloatArray,
        scales: Scales,
        *,
        shares: FloatArray | float = 1.0,
    ) -> None:
        """Takes points (N, D), values (N,) or (N, K), their variances and shares of noise (N,)."""
        self._points, self._scales = points, scales
        self._mean = values.mean(axis=0)
        self._unit = _unit(values[:, 0] if values.ndim == 2 else values)
        self._shares = np.sqrt(np.broadcast_to(shares, len(points)))
        kernel = _kernel(points, points, scales)
        kernel += math.exp(2 * scales.log_noise) * noise_pattern(points, self._shares, scales.own)
        kernel[np.diag_indices_from(kernel)] += variances / self._unit**2 + JITTER
        self._factor = cho_factor(kernel, lower=True, check_finite=False)
        self._coefficients = cho_solve(
            self._factor, (values - self._mean) / self._unit, check_finite=False
        )

    @property
    def noise_sd(self) -> float:
        """Standard deviation between runs of a point with a whole share of the noise."""
        return self._unit * math.exp(self._scales.log_noise) * math.sqrt(1 - self._scales.own)

    def predict(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns mean (M,) or (M, K) and standard deviation (M,) of f at points (M, D)."""
        mean, explained, own = self._given(points)
        variance = math.exp(2 * self._scales.log_signal) + own - (explained**2).sum(axis=0)
        return mean, self._unit * np.sqrt(np.maximum(variance, 1e-10))

    def sample(self, points: FloatArray, num: int, rng: np.random.Generator) -> FloatArray:
        """Returns `num` joint draws of f at points (M, D): (num, M, K); all K move together."""
        mean, explained, own = self._given(points)
        covariance = _kernel(points, points, self._scales) + own * _same(points, points)
        covariance -= explained.T @ explained
        # By its eigenvalues: what is known exactly leaves none that Cholesky's would take.
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        moved = self._unit * (rng.normal(size=(num, len(points))) @ root.T)
        drawn: FloatArray = mean.reshape(len(points), -1)[None] + moved[..., None]
        return drawn

    def _given(self, points: FloatArray) -> tuple[FloatArray, FloatArray, float]:
        own = self._scales.own * math.exp(2 * self._scales.log_noise)
        cross = _kernel(self._points, points, self._scales)
        cross += own * self._shares[:, None] * _same(self._points, points)
        mean = self._mean + self._unit * (cross.T @ self._coefficients)
        explained = solve_triangular(self._factor[0], cross, lower=True, check_finite=False)
        return mean, explained, own


def fit_scales(
    points: FloatArray,
    values: FloatArray,
    variances: FloatArray,
    *,
    shares: FloatArray | float = 1.0,
    start: Scales | None = None,
    max_iterations: int = 15,
) -> Scales:
    """Returns the maximum a posteriori scales for values (N,) at points (N, D), from `start` on."""
    unit = _unit(values)
    standard = (values - values.mean()) / unit
    squares = (points[:, None, :] - points[None, :, :]).transpose(2, 0, 1) ** 2
    own = float(Scales._field_defaults["own"])
    pattern = noise_pattern(points, np.sqrt(np.broadcast_to(shares, len(points))), own)
    begin = _prior_mean(points.shape[1])
    if start is not None:
        begin = np.concatenate([[start.log_signal, start.log_noise], start.log_lengths])
    found = minimize(
        _loss,
        begin,
        args=(squares, standard, variances / unit**2, pattern),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-4.0, 3.0), (-7.0, 1.0)] + [(-4.0, 5.0)] * points.shape[1],
        options={"maxiter": max_iterations},
    )
    return Scales(float(found.x[0]), float(found.x[1]), found.x[2:], own)


def with_repeats(
    scales: Scales, values: FloatArray, points: FloatArray, shares: FloatArray
) -> Scales:
    """Returns the scales with the noise that runs of the same configuration show, as far as any do.

    With ν degrees of freedom and variance s², that of a run is (ν₀ (1 − o) n² + ν s²) / (ν₀ + ν),
    with o the prior's share; what is left of n² is the own one, at least a tenth of it.
    """
    unit = _unit(values)
    _, group = np.unique(points, axis=0, return_inverse=True)
    group, counts = group.reshape(-1), np.bincount(group.reshape(-1))
    freedom = float((counts - 1).sum())
    if not freedom:
        return scales
    scaled = values / unit / np.sqrt(shares)
    means = np.bincount(group, weights=scaled) / counts
    within = float(((scaled - means[group]) ** 2).sum()) / freedom
    noise = math.exp(2 * scales.log_noise)
    run = (OWN_DEGREES * (1 - scales.own) * noise + freedom * within) / (OWN_DEGREES + freedom)
    own = max(noise - run, LEAST_OWN * run)
    return scales._replace(log_noise=0.5 * math.log(run + own), own=own / (run + own))


def _prior_mean(num_dims: int) -> FloatArray:
    length = LENGTH_PRIOR[0] + 0.5 * math.log(max(num_dims, 1))
    return np.array([SIGNAL_PRIOR[0], NOISE_PRIOR[0], *[length] * num_dims])


def _unit(values: FloatArray) -> float:
    return float(values.std()) or 1.0


def noise_pattern(points: FloatArray, share_sds: FloatArray, own: float) -> FloatArray:
    """Returns the covariances (N, N) of the noise over n²: what equal points share of it too."""
    weights = own * _same(points, points) + (1 - own) * np.eye(len(points))
    pattern: FloatArray = weights * share_sds[:, None] * share_sds[None, :]
    return pattern


def _same(a: FloatArray, b: FloatArray) -> FloatArray:
    """Returns 1 where points (N, D) and (M, D) are equal, else 0: (N, M)."""
    same, rows = np.zeros((len(a), len(b))), dict[bytes, list[int]]()
    for i, row in enumerate(a):
        rows.setdefault(row.tobytes(), []).append(i)
    for j, row in enumerate(b):
        same[rows.get(row.tobytes(), []), j] = 1.0
    return same


def _kernel(a: FloatArray, b: FloatArray, scales: Scales) -> FloatArray:
    inverse = np.exp(-scales.log_lengths)
    left, right = a * inverse, b * inverse
    squared = (left**2).sum(1)[:, None] + (right**2).sum(1)[None, :] - 2 * left @ right.T
    # Rounding leaves a little less than 0 between equal points.
    return _matern(np.sqrt(np.maximum(squared, 0.0)), scales)


def _matern(r: FloatArray, scales: Scales) -> FloatArray:
    kernel: FloatArray = (
        math.exp(2 * scales.log_signal) * (1 + SQRT5 * r + 5 / 3 * r**2) * np.exp(-SQRT5 * r)
    )
    return kernel


def _loss(
    x: FloatArray,
    squares: FloatArray,
    values: FloatArray,
    variances: FloatArray,
    pattern: FloatArray,
) -> tuple[float, FloatArray]:
    scales = Scales(float(x[0]), float(x[1]), x[2:])
    inverse_squares = np.exp(-2 * scales.log_lengths)
    r = np.sqrt(np.tensordot(inverse_squares, squares, axes=1))
    signal = _matern(r, scales)
    noise = math.exp(2 * scales.log_noise) * pattern
    kernel = signal + noise
    kernel[np.diag_indices_from(kernel)] += variances + JITTER
    factor = cho_factor(kernel, lower=True, check_finite=False)
    alpha = cho_solve(factor, values, check_finite=False)
    inverse = cho_solve(factor, np.eye(len(values)), check_finite=False)
    outer = np.outer(alpha, alpha) - inverse
    loss = 0.5 * float(values @ alpha) + float(np.log(np.diag(factor[0])).sum())
    # dk/d(log l_d) = s² · 5/3 · (1 + √5 r) · exp(−√5 r) · (x_d − x'_d)² / l_d²
    slope = math.exp(2 * scales.log_signal) * 5 / 3 * (1 + SQRT5 * r) * np.exp(-SQRT5 * r)
    lengths = -0.5 * inverse_squares * np.tensordot(squares, outer * slope, axes=2)
    signal_slope = -float((outer * signal).sum())
    noise_slope = -float((outer * noise).sum())
    gradient = np.concatenate([[signal_slope, noise_slope], lengths])
    sd = np.array([SIGNAL_PRIOR[1], NOISE_PRIOR[1], *[LENGTH_PRIOR[1]] * len(lengths)])
    z = (x - _prior_mean(len(lengths))) / sd
    return loss + 0.5 * float(z @ z), gradient + z / sd
