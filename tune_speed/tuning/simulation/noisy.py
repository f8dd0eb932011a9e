"""Benchmarks whose runs differ, as trainings with other seeds do, by a spread that is known.

Each call of `curve` is another run of the configuration: all of its evaluations are off by one
draw of a normal distribution, or by one that depends on the configuration or has heavy tails, and
each by a small one of its own.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Literal

import numpy as np

from tune_speed.tuning.policy.curve import Curve, Mode, crossing
from tune_speed.tuning.simulation.synthetic import NOISE, Synthetic
from tune_speed.tuning.simulation.zoo import Zoo

Kind = Literal["normal", "uneven", "tails"]
DRAWS = 400
"""Runs from which the true chance and expected time are computed."""


def truth_of(runs: Iterable[Curve], *, target: float, mode: Mode) -> tuple[float, float]:
    """Returns the share of runs of one configuration that meet the target, and all time over hits.

    What does not fit into memory takes no time, and never meets it.
    """
    hits, n, spent_s = 0, 0, 0.0
    for curve in runs:
        hit = crossing(curve, target=target, mode=mode) if len(curve.train_s) else None
        hits, n = hits + (hit is not None), n + 1
        spent_s += curve.end_s if hit is None else float(curve.train_s[hit])
    return hits / n, spent_s / hits if hits else math.inf


class Noisy:
    """A synthetic benchmark with runs that differ by `spread` of the metric (standard deviation).

    `uneven`: from half of it with the smallest batch to twice with the largest; `tails`: Student's
    t with three degrees of freedom, scaled to it.
    """

    def __init__(
        self, base: Synthetic | Zoo, spread: float, kind: Kind = "normal", seed: int = 0
    ) -> None:
        self.base, self.spread, self.kind, self.seed = base, spread, kind, seed
        suffix = "" if kind == "normal" else f"-{kind}"
        self.name = f"noisy-{100 * spread:g}{suffix}-{base.mode}"
        self.space, self.mode = base.space, base.mode
        self._calls = Counter[str]()

    @property
    def target(self) -> float:
        """Accuracy that counts as reached."""
        return self.base.target

    @property
    def full_run_s(self) -> float:
        """Seconds of the longest run of the family."""
        return self.base.full_run_s

    def fresh(self, seed: int) -> "Noisy":
        """Returns the same benchmark for another search, whose runs come in an order of its own."""
        return Noisy(self.base, self.spread, self.kind, seed)

    def curve(self, params: Mapping[str, Any]) -> Curve:
        """Returns the next run of a configuration."""
        key = json.dumps(sorted(params.items()))
        self._calls[key] += 1
        digest = int.from_bytes(sha256(key.encode()).digest()[:8])
        return self._run(params, np.random.default_rng([self.seed, digest, self._calls[key]]))

    def predicted_cost(self, params: Mapping[str, Any]) -> float:
        """Returns the seconds to the curve's end."""
        return self.base.predicted_cost(params)

    def truth(self, params: Mapping[str, Any]) -> tuple[float, float]:
        """Returns the chance that a run meets the target, and the expected time with restarts [s].

        Both from 400 runs that no search sees: hits over runs, and all time over hits.
        """
        rng = np.random.default_rng(12_345)
        runs = (self._run(params, rng) for _ in range(DRAWS))
        return truth_of(runs, target=self.target, mode=self.mode)

    def _run(self, params: Mapping[str, Any], rng: np.random.Generator) -> Curve:
        curve = self.base.curve(params)
        if not len(curve.train_s):
            return curve
        draw = rng.standard_t(3) / math.sqrt(3) if self.kind == "tails" else rng.normal()
        spread = self.spread
        if self.kind == "uneven":
            spread *= 0.5 + 1.5 * math.log(params["batch_size"] / 32) / math.log(64)
        own = rng.normal(size=len(curve.metric)) * NOISE
        return Curve(curve.train_s, np.clip(curve.metric + spread * draw + own, 0.0, 1.0))


NOISY: dict[str, Noisy] = {
    benchmark.name: benchmark
    for mode in ("fixed_length", "anytime")
    for benchmark in (
        *(Noisy(Synthetic(0.04, mode), spread) for spread in (0.002, 0.005, 0.01, 0.02)),
        Noisy(Synthetic(0.04, mode), 0.01, "uneven"),
        Noisy(Synthetic(0.04, mode), 0.01, "tails"),
    )
}
