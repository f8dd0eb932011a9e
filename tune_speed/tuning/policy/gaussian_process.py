"""Gaussian-process regression, quick enough to be fitted before every trial.

Model, for points x in the unit cube and observations y with noise of its own for each:

    y = m + f(x) + ε,   f ~ GP(0, s² · k(r)),   ε ~ N(0, n² + v),
    k(r) = (1 + √5·r + 5r²/3) · exp(−√5·r),   r² = Σ_d ((x_d − x'_d) / l_d)²

with m the mean of the observations, s the scale of the function, l_d the length over which
coordinate d changes it, n the scale of the noise, and v a further variance of a point.

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


class Scales(NamedTuple):
    """Logarithms of the model's scales, for observations of unit variance."""

    log_signal: float
    log_noise: float
    log_lengths: FloatArray
    """(D,)"""


# Means and standard deviations of the logarithms a priori; the lengths' mean in one dimension.
SIGNAL_PRIOR = (0.0, 1.0)
NOISE_PRIOR = (math.log(0.1), 1.0)
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
        self, points: FloatArray, values: FloatArray, variances: FloatArray, scales: Scales
    ) -> None:
        """Takes points (N, D), values (N,) or (N, K) and their own variances (N,)."""
        self._points, self._scales = points, scales
        self._mean = values.mean(axis=0)
        self._unit = _unit(values[:, 0] if values.ndim == 2 else values)
        kernel = _kernel(points, points, scales)
        kernel[np.diag_indices_from(kernel)] += _noise(variances / self._unit**2, scales)
        self._factor = cho_factor(kernel, lower=True, check_finite=False)
        self._coefficients = cho_solve(
            self._factor, (values - self._mean) / self._unit, check_finite=False
        )

    @property
    def noise_sd(self) -> float:
        """Standard deviation of an observation around f, n in the units of the values."""
        return self._unit * math.exp(self._scales.log_noise)

    def predict(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns mean (M,) or (M, K) and standard deviation (M,) of f at points (M, D)."""
        cross, explained = self._explained(points)
        mean = self._mean + self._unit * (cross.T @ self._coefficients)
        variance = math.exp(2 * self._scales.log_signal) - (explained**2).sum(axis=0)
        return mean, self._unit * np.sqrt(np.maximum(variance, 1e-10))

    def correlations(self, points: FloatArray, point: FloatArray) -> FloatArray:
        """Returns the correlation of f at one point (1, D) with observations at (M, D): (M,)."""
        here, there = self._explained(points)[1], self._explained(point)[1]
        covariance = _kernel(points, point, self._scales)[:, 0] - there[:, 0] @ here
        signal = math.exp(2 * self._scales.log_signal)
        noise = math.exp(2 * self._scales.log_noise)
        seen = np.maximum(signal - (here**2).sum(axis=0), 1e-10) + noise
        own = max(signal - float((there**2).sum()), 1e-10)
        correlations: FloatArray = covariance / np.sqrt(seen * own)
        return correlations

    def _explained(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns the kernel (N, M), and (N, M) whose squares sum to the variance explained."""
        cross = _kernel(self._points, points, self._scales)
        return cross, solve_triangular(self._factor[0], cross, lower=True, check_finite=False)


def fit_scales(
    points: FloatArray,
    values: FloatArray,
    variances: FloatArray,
    *,
    start: Scales | None = None,
    max_iterations: int = 15,
) -> Scales:
    """Returns the maximum a posteriori scales for values (N,) at points (N, D).

    `variances` (N,) are the observations' own; the search begins at the prior's means, or `start`.
    """
    unit = _unit(values)
    standard = (values - values.mean()) / unit
    squares = (points[:, None, :] - points[None, :, :]).transpose(2, 0, 1) ** 2
    begin = _prior_mean(points.shape[1])
    if start is not None:
        begin = np.concatenate([[start.log_signal, start.log_noise], start.log_lengths])
    found = minimize(
        _loss,
        begin,
        args=(squares, standard, variances / unit**2),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-4.0, 3.0), (-7.0, 1.0)] + [(-4.0, 5.0)] * points.shape[1],
        options={"maxiter": max_iterations},
    )
    return Scales(float(found.x[0]), float(found.x[1]), found.x[2:])


def _prior_mean(num_dims: int) -> FloatArray:
    length = LENGTH_PRIOR[0] + 0.5 * math.log(max(num_dims, 1))
    return np.array([SIGNAL_PRIOR[0], NOISE_PRIOR[0], *[length] * num_dims])


def _unit(values: FloatArray) -> float:
    return float(values.std()) or 1.0


def _noise(variances: FloatArray, scales: Scales) -> FloatArray:
    noise: FloatArray = math.exp(2 * scales.log_noise) + variances + JITTER
    return noise


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
    x: FloatArray, squares: FloatArray, values: FloatArray, variances: FloatArray
) -> tuple[float, FloatArray]:
    """Returns the negative log posterior density of the scales, and its gradient."""
    scales = Scales(float(x[0]), float(x[1]), x[2:])
    inverse_squares = np.exp(-2 * scales.log_lengths)
    r = np.sqrt(np.tensordot(inverse_squares, squares, axes=1))
    signal = _matern(r, scales)
    kernel = signal.copy()
    kernel[np.diag_indices_from(kernel)] += _noise(variances, scales)
    factor = cho_factor(kernel, lower=True, check_finite=False)
    alpha = cho_solve(factor, values, check_finite=False)
    inverse = cho_solve(factor, np.eye(len(values)), check_finite=False)
    outer = np.outer(alpha, alpha) - inverse
    loss = 0.5 * float(values @ alpha) + float(np.log(np.diag(factor[0])).sum())
    # dk/d(log l_d) = s² · 5/3 · (1 + √5 r) · exp(−√5 r) · (x_d − x'_d)² / l_d²
    slope = math.exp(2 * scales.log_signal) * 5 / 3 * (1 + SQRT5 * r) * np.exp(-SQRT5 * r)
    lengths = -0.5 * inverse_squares * np.tensordot(squares, outer * slope, axes=2)
    signal_slope = -float((outer * signal).sum())
    noise_slope = -float(np.diag(outer).sum()) * math.exp(2 * scales.log_noise)
    gradient = np.concatenate([[signal_slope, noise_slope], lengths])
    sd = np.array([SIGNAL_PRIOR[1], NOISE_PRIOR[1], *[LENGTH_PRIOR[1]] * len(lengths)])
    z = (x - _prior_mean(len(lengths))) / sd
    return loss + 0.5 * float(z @ z), gradient + z / sd
