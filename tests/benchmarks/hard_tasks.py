"""Trainings that few configurations meet the target with, and the best of them soon."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.samplers import RandomSampler
from scipy.special import ndtr

from tune_speed.tuning.policy.curve import FloatArray
from tune_speed.tuning.policy.samplers import quiet_study, suggest
from tune_speed.tuning.simulation.synthetic import (
    NOISE,
    PROGRESS,
    TREE,
    Synthetic,
    _Setting,
)

SHAPES: Mapping[str, tuple[float, float]] = {
    "short": (0.06, 1.0),
    "medium": (0.25, 1.0),
    "long": (0.62, 0.8),
}
"""a and c of the error a · (epochs + 1)^-c that is left for want of training."""
EPOCHS = 1.0, 52.0
DRAWS = 4000
USUAL_EPOCHS = 16
"""At which the best rate is that of `Synthetic`; it falls by the 0.3rd power of the length."""


@dataclass(frozen=True)
class Hard(Synthetic):
    """As `Synthetic` with a fixed length, but for what length is worth."""

    shape: str = "short"

    @property
    def tree(self) -> dict[str, Any]:
        return {**TREE, "epochs": {"low": EPOCHS[0], "high": EPOCHS[1], "log": True}}

    @functools.cached_property
    def target(self) -> float:
        curves = [self.curve(params).metric for params in drawn(self.shape, self.seed)]
        finals = [float(np.nan_to_num(curve[-1])) if len(curve) else 0.0 for curve in curves]
        return float(np.quantile(finals, 1 - self.feasible_share))

    @functools.cached_property
    def full_run_s(self) -> float:
        return max(map(self.predicted_cost, drawn(self.shape, self.seed)))

    def _metric(self, s: _Setting, progress: FloatArray) -> FloatArray:
        rate_error = s.rate_error + 0.3 * math.log2(s.epochs / USUAL_EPOCHS)
        usual = super()._metric(s._replace(rate_error=rate_error), progress)
        a, power = SHAPES[self.shape]
        done = np.maximum(s.epochs * progress, 1e-3) + 1
        moved: FloatArray = usual + 0.62 * done**-0.8 - a * done**-power
        return np.where(np.isfinite(usual), np.maximum(moved, 0.1), np.nan)


def best_expected_s(task: Hard, spread: float) -> float:
    """Returns the least c / p of runs at the optimum [s], over lengths and batches that fit."""
    best = _Setting(0.0, 0.0, task._best_pct_start, 0.0, 0.0, 1.0, 0.0, fits=True)
    times_s = []
    for epochs in np.geomspace(*EPOCHS, 400):
        rate_error = -0.3 * math.log2(epochs / USUAL_EPOCHS)
        setting = best._replace(epochs=float(epochs), rate_error=rate_error)
        end = float(task._metric(setting, PROGRESS[-1:])[0])
        chance = float(ndtr((end - task.target) / math.hypot(spread, NOISE)))
        sizes = filter(task._fits, TREE["batch_size"]["choices"])
        times_s += [epochs * task._epoch_s(size) / max(chance, 1e-9) for size in sizes]
    return float(min(times_s))


@functools.lru_cache(maxsize=64)
def drawn(shape: str, seed: int) -> list[dict[str, Any]]:
    """Returns configurations at random, the same for all searches."""
    study = quiet_study(RandomSampler(seed=20_000 + seed))
    space = Hard(1.0, "fixed_length", seed, shape).space
    return [suggest(space, study.ask()) for _ in range(DRAWS)]
