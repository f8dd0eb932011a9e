"""What a search cannot know of benchmarks whose runs differ: true chances, times and ends."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.curve import Curve, Mode, crossing
from tune_speed.tuning.simulation.recorded import RecordedBenchmark
from tune_speed.tuning.simulation.synthetic import Noisy, Synthetic

DRAWS = 400
"""Runs that no search sees, from which the truth of a noisy benchmark is computed."""


def truth(benchmark: Noisy | RecordedBenchmark, params: Mapping[str, Any]) -> tuple[float, float]:
    """Returns the chance that a run meets the target, and the expected time with restarts [s].

    Hits over runs, and all time over hits: of a table, those of the nearest configuration.
    """
    if isinstance(benchmark, RecordedBenchmark):
        own = benchmark._equal[benchmark.nearest(params)]
        return truth_of((benchmark.runs[int(i)].curve for i in own), benchmark)
    rng = np.random.default_rng(12_345)
    return truth_of((benchmark._run(params, rng) for _ in range(DRAWS)), benchmark)


def truth_of(runs: Iterable[Curve], benchmark: Noisy | RecordedBenchmark) -> tuple[float, float]:
    # What does not fit into memory takes no time, and never meets the target.
    hits, n, spent_s = 0, 0, 0.0
    for curve in runs:
        hit = crossing(curve, target=benchmark.target, mode=benchmark.mode)
        hits, n = hits + (hit is not None), n + 1
        spent_s += curve.end_s if hit is None else float(curve.train_s[hit])
    return hits / n, spent_s / hits if hits else math.inf


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
        if isinstance(self.base, Synthetic):
            return self
        return Within(self.base.fresh(seed), self.within_s / self.base.full_run_s)

    def curve(self, params: Mapping[str, Any]) -> Curve:
        return self.base.curve(params)

    def predicted_cost(self, params: Mapping[str, Any]) -> float:
        return self.base.predicted_cost(params)

    def truth(self, params: Mapping[str, Any]) -> float:
        """Returns the mean end of 100 runs that end in time; of others, the mean at the limit."""
        runs = [self.base.curve(params) for _ in range(100)]
        if not all(len(run.train_s) and math.isfinite(run.metric[-1]) for run in runs):
            return 0.0
        limit_s = self.within_s
        return float(np.mean([np.interp(limit_s, run.train_s, run.metric) for run in runs]))
