"""Benchmarks of which the best end of a run within a time is sought, not a target soonest."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.curve import Curve, Mode
from tune_speed.tuning.simulation.noisy import Noisy
from tune_speed.tuning.simulation.recorded import RecordedBenchmark
from tune_speed.tuning.simulation.synthetic import Synthetic

DRAWS = 100
"""Runs of which the true end is the mean."""


class Within:
    """A benchmark of fixed length, of which runs count that end within a share of the longest."""

    mode: Mode = "fixed_length"
    target = 0.01
    """Least accuracy that counts."""

    def __init__(self, base: Noisy | Synthetic | RecordedBenchmark, share: float) -> None:
        assert base.mode == "fixed_length"
        self.base, self.within_s = base, share * base.full_run_s
        self.name = f"{base.name}-within-{share:.0%}"
        self.space: SearchSpace = base.space
        self.full_run_s = self.within_s

    def fresh(self, seed: int) -> "Within":
        """Returns the same benchmark for another search."""
        if isinstance(self.base, Synthetic):
            return self
        return Within(self.base.fresh(seed), self.within_s / self.base.full_run_s)

    def curve(self, params: Mapping[str, Any]) -> Curve:
        """Returns a run of a configuration."""
        return self.base.curve(params)

    def predicted_cost(self, params: Mapping[str, Any]) -> float:
        """Returns the seconds to the curve's end."""
        return self.base.predicted_cost(params)

    def truth(self, params: Mapping[str, Any]) -> float:
        """Returns the mean end of runs that end in time; of others, the mean at the limit."""
        runs = [self.base.curve(params) for _ in range(DRAWS)]
        if not all(len(run.train_s) and math.isfinite(run.metric[-1]) for run in runs):
            return 0.0
        return float(np.mean([run.at(min(self.within_s, run.end_s)) for run in runs]))
