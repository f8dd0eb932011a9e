"""A target that is worth reaching: a little below what a run's curve promises for a longer one."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

TIMES = 3.0
"""How much longer the run is for which the curve is read."""
EXPONENTS = np.linspace(0.3, 1.5, 25)
MOST_GAIN = 0.45
"""Share of the error that a longer run is trusted to take away, whatever its curve says: within a
run of one cycle errors fall more steeply than from a shorter run to a longer one. On clothing
photographs a run three times as long took away 0.43."""


class Point(NamedTuple):
    """An evaluation."""

    samples: int
    accuracy: float


def promised(curve: Sequence[Point], *, times: float = TIMES) -> float:
    """Returns the accuracy that a run `times` as long is likely to end with.

    Of all e(x) = a + b x^-c with a, b ≥ 0 and c in [0.3, 1.5], the one with the least squares to
    the errors after x samples, at the end of the longer run; at least what the run ended with, and
    at most `MOST_GAIN` of its error better. With fewer than three points, or where errors do not
    fall, what it ended with.

    Source: the power law of learning curves, as Domhan et al., "Speeding up Automatic
    Hyperparameter Optimization", 2015 (table 1, pow3). Where we differ: one curve, and the bound.
    """
    reached = curve[-1].accuracy
    errors = np.array([1 - point.accuracy for point in curve])
    if len(curve) < 3 or errors[-1] >= errors[0]:
        return reached
    x = np.array([point.samples for point in curve]) / curve[-1].samples

    def fitted(exponent: float) -> tuple[float, float]:
        terms = np.stack([np.ones_like(x), x**-exponent], axis=1)
        (rest, fall), residual = nnls(terms, errors)
        return residual, rest + fall * times**-exponent

    _, error = min(map(fitted, EXPONENTS))
    return float(min(max(reached, 1 - error), 1 - (1 - MOST_GAIN) * (1 - reached)))


def below(accuracy: float, num_validation: int) -> float:
    """Returns an accuracy less half its standard error, √(a (1 − a) / n) / 2, in whole hundredths.

    A run as good as that meets it two times in three; all of what it reached, in every second run.
    """
    error = math.sqrt(accuracy * (1 - accuracy) / num_validation)
    return min(0.99, math.floor(100 * (accuracy - error / 2)) / 100)
