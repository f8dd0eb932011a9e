"""A run's metric over its training clock, and when it met a target."""

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Mode = Literal["anytime", "fixed_length"]


class Curve(NamedTuple):
    """The metric of one run over its training clock.

    A run without any evaluation ran out of memory; one whose metric is NaN diverged there.
    """

    train_s: FloatArray
    """(E,) seconds on the training clock at each evaluation, increasing."""
    metric: FloatArray
    """(E,) the target metric in [0, 1] at each evaluation."""

    @property
    def end_s(self) -> float:
        """Training clock of the last evaluation [s]; 0 without one."""
        return float(self.train_s[-1]) if len(self.train_s) else 0.0

    def at(self, train_s: float | FloatArray) -> FloatArray:
        """Returns the metric at clock readings, linear between evaluations and flat outside."""
        return np.asarray(np.interp(train_s, self.train_s, self.metric))


NO_CURVE = Curve(np.empty(0), np.empty(0))


def crossing(curve: Curve, *, target: float, mode: Mode) -> int | None:
    """Returns the index of the evaluation at which the target held, or None if it never does.

    `fixed_length`: the last one, if it holds. `anytime`: the first of two consecutive ones.
    """
    holds = np.asarray(curve.metric) >= target
    if mode == "fixed_length":
        return len(holds) - 1 if len(holds) and holds[-1] else None
    pairs = np.flatnonzero(holds[:-1] & holds[1:])
    return int(pairs[0]) if len(pairs) else None
