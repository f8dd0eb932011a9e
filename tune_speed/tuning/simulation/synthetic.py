"""Synthetic trainings with a known optimum, on which policies are compared.

A configuration's final error is a sum of shortfalls:

    e(x) = 0.62 · (epochs + 1)^(−0.8) + 0.012 · z² / (1 + |z|/4) + 0.012 · (log₁₀ wd − w)²
           + 0.15 · (pct − q)² + 0.004 · (log₁₀ final_div_factor − g)²
    z = log₂(lr / best rate), where the best rate grows with the effective batch size

and its accuracy is 0.96 − e. Within a run the error falls with the progress of the schedule, plus
a share of the present learning rate as in a one-cycle run: in mid-schedule it is high even where
the final accuracy will be good. Rates that are far too high diverge. Seconds per epoch fall with
the batch size until the device is full; a batch that does not fit into memory has no curve.

The target is the quantile of the final accuracy that leaves the wanted share of configurations,
drawn at random.

Runs of a `Noisy` benchmark differ by a spread that is known, as trainings with other seeds do.
"""

import functools
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, NamedTuple

import numpy as np

from tune_speed.study.space import SearchSpace
from tune_speed.tuning.policy.curve import NO_CURVE, Curve, FloatArray, Mode, crossing
from tune_speed.tuning.policy.samplers import suggest

TREE: dict[str, Any] = {
    "optimizer": {
        "choices": {
            "sgd": {
                "lr": {"low": 0.01, "high": 10.0, "log": True},
                "weight_decay": {"low": 1e-6, "high": 1e-1, "log": True},
            },
            "adamw": {
                "lr": {"low": 1e-5, "high": 1e-1, "log": True},
                "weight_decay": {"low": 1e-4, "high": 1.0, "log": True},
            },
        }
    },
    "lr_schedule": {
        "one_cycle": {
            "pct_start": {"low": 0.05, "high": 0.7},
            "final_div_factor": {"low": 1.0, "high": 1e4, "log": True},
        }
    },
    "batch_size": {"choices": [32, 64, 128, 256, 512, 1024, 2048]},
    "accumulation_steps": {"choices": [1, 2, 4]},
}
ACCURACY = 0.96
MIN_EPOCHS = 4.0
MAX_EPOCHS = 64.0
# Standard deviation of an evaluation's accuracy.
NOISE = 0.0015
# Configurations from which the target is taken: at a share of 1 %, 40 of them meet it.
DRAWS = 4000
EVALUATIONS = 48
PROGRESS = np.arange(1, EVALUATIONS + 1) / EVALUATIONS
"""Shares of the schedule at which a run is evaluated."""
# Lengths that are tried for the best known time: neighbours lie 0.3 % apart.
LENGTHS = 1000
Kind = Literal["normal", "uneven", "tails"]


class _Setting(NamedTuple):
    rate_error: float
    """log2 of the learning rate over the best one."""
    decay_error: float
    """log10 of the weight decay over the best one."""
    pct_start: float
    """Share of the schedule at which the learning rate peaks."""
    pct_error: float
    """That less the best one."""
    final_error: float
    """log10 of `final_div_factor` over the best one."""
    epochs: float
    epoch_s: float
    fits: bool


@dataclass(frozen=True)
class Synthetic:
    """A member of the family."""

    feasible_share: float
    """Share of random configurations that meet the target."""
    mode: Mode
    seed: int = 0
    """Where the optimum lies."""

    @property
    def name(self) -> str:
        """Says share, mode and seed, such as `synthetic-4%-anytime`."""
        seed = f"-{self.seed}" if self.seed else ""
        return f"synthetic-{self.feasible_share:.0%}-{self.mode}{seed}"

    @property
    def tree(self) -> dict[str, Any]:
        length = {"low": MIN_EPOCHS, "high": MAX_EPOCHS, "log": True}
        return {**TREE, "epochs": length} if self.mode == "fixed_length" else TREE

    @functools.cached_property
    def space(self) -> SearchSpace:
        return SearchSpace.from_tree(self.tree)

    @functools.cached_property
    def target(self) -> float:
        return float(np.quantile(_finals(self.mode, self.seed), 1 - self.feasible_share))

    def curve(self, params: Mapping[str, Any]) -> Curve:
        setting = self._setting(params)
        if not setting.fits:
            return NO_CURVE
        # Noise of its own, always the same for the same configuration: `hash` of a text would
        # differ from process to process.
        text = json.dumps([self.seed, sorted(params.items())]).encode()
        digest = int.from_bytes(sha256(text).digest()[:8])
        noise = np.random.default_rng(digest).normal(size=EVALUATIONS)
        metric = self._metric(setting, PROGRESS) + noise * NOISE
        return Curve(PROGRESS * setting.epochs * setting.epoch_s, np.clip(metric, 0.0, 1.0))

    def predicted_cost(self, params: Mapping[str, Any]) -> float:
        setting = self._setting(params)
        return setting.epochs * setting.epoch_s

    @functools.cached_property
    def full_run_s(self) -> float:
        return max(self.predicted_cost(params) for params in draws(self.mode, self.seed))

    @functools.cached_property
    def best_known_s(self) -> float:
        """Shortest time to target [s] but for the noise; infinite if the target is out of reach.

        At the optimum nothing is lacking but epochs: the target a takes n = (0.62 / (0.96 −
        a))^1.25 − 1 of the largest batch that fits, in `anytime` mode up to an evaluation.
        """
        best = _Setting(0.0, 0.0, self._best_pct_start, 0.0, 0.0, MAX_EPOCHS, 0.0, fits=True)
        sizes = filter(self._fits, TREE["batch_size"]["choices"])
        return min(self._shortest_s(best._replace(epoch_s=self._epoch_s(size))) for size in sizes)

    def _shortest_s(self, best: _Setting) -> float:
        if self.mode == "anytime":
            metric = self._metric(best, PROGRESS)
            curve = Curve(PROGRESS * best.epochs * best.epoch_s, metric)
            hit = crossing(curve, target=self.target, mode=self.mode)
            return math.inf if hit is None else float(curve.train_s[hit])
        for epochs in np.geomspace(MIN_EPOCHS, MAX_EPOCHS, LENGTHS):
            if self._metric(best._replace(epochs=epochs), PROGRESS[-1:])[0] >= self.target:
                return float(epochs) * best.epoch_s
        return math.inf

    @functools.cached_property
    def _optimum(self) -> FloatArray:
        return np.random.default_rng(self.seed).uniform(-1.0, 1.0, size=5)

    @property
    def _best_pct_start(self) -> float:
        return 0.3 + 0.1 * float(self._optimum[2])

    def _setting(self, params: Mapping[str, Any]) -> _Setting:
        shift = self._optimum
        name = params["optimizer"]
        batch = params["batch_size"] * params["accumulation_steps"]
        best_lr = 0.3 if name == "sgd" else 2e-3
        best_lr *= (batch / 256) ** (0.8 if name == "sgd" else 0.5) * 2 ** shift[0]
        pct_start = params["lr_schedule.one_cycle.pct_start"]
        best_decay = (5e-4 if name == "sgd" else 2e-2) * 10 ** (0.5 * shift[1])
        return _Setting(
            rate_error=math.log2(params[f"optimizer.{name}.lr"] / best_lr),
            decay_error=math.log10(params[f"optimizer.{name}.weight_decay"] / best_decay),
            pct_start=pct_start,
            pct_error=pct_start - self._best_pct_start,
            final_error=math.log10(params["lr_schedule.one_cycle.final_div_factor"])
            - (2.0 + shift[3]),
            epochs=float(params.get("epochs", MAX_EPOCHS)),
            epoch_s=self._epoch_s(params["batch_size"]),
            fits=self._fits(params["batch_size"]),
        )

    @staticmethod
    def _epoch_s(batch_size: int) -> float:
        return 0.6 + 1.4 * math.pow(128 / batch_size, 0.7)

    def _fits(self, batch_size: int) -> bool:
        # Memory differs by the seed: the largest batch is 256, 512 or 1024.
        return bool(batch_size <= 512 * 2 ** round(self._optimum[4]))

    def _metric(self, s: _Setting, progress: FloatArray) -> FloatArray:
        # In doublings: a rate of more than 23 times the best one.
        if s.rate_error > 4.5:
            return np.where(progress > 0.25, np.nan, 0.1)
        done = s.epochs * progress
        length = 0.62 * (np.maximum(done, 1e-3) + 1.0) ** -0.8
        rate = 0.012 * s.rate_error**2 / (1 + 0.25 * abs(s.rate_error))
        rest = 0.012 * s.decay_error**2 + 0.15 * s.pct_error**2 + 0.004 * s.final_error**2
        error = length + rate + rest
        if self.mode == "fixed_length":
            # The learning rate of a one-cycle schedule, relative to its peak.
            peak = min(max(s.pct_start, 0.05), 0.95)
            down = (1 + np.cos(np.pi * (progress - peak) / (1 - peak))) / 2
            heat = np.where(progress < peak, progress / peak, down)
            error = error + 0.35 * heat * (1 + 0.1 * s.rate_error)
        return ACCURACY - np.minimum(error, ACCURACY - 0.1)


class Noisy:
    """A benchmark whose runs differ by `spread` of the metric (standard deviation).

    Each call of `curve` is another run, all of whose evaluations are off by one draw, and each by a
    small one of its own. `uneven`: from half of the spread with the smallest batch to twice with
    the largest; `tails`: Student's t with three degrees of freedom, scaled to it.
    """

    def __init__(
        self, base: Synthetic, spread: float, kind: Kind = "normal", seed: int = 0
    ) -> None:
        self.base, self.spread, self.kind, self.seed = base, spread, kind, seed
        suffix = "" if kind == "normal" else f"-{kind}"
        self.name = f"noisy-{100 * spread:g}{suffix}-{base.mode}"
        self.space, self.mode = base.space, base.mode
        self._calls = Counter[str]()

    @property
    def target(self) -> float:
        return self.base.target

    @property
    def full_run_s(self) -> float:
        return self.base.full_run_s

    def fresh(self, seed: int) -> "Noisy":
        return Noisy(self.base, self.spread, self.kind, seed)

    def curve(self, params: Mapping[str, Any]) -> Curve:
        key = json.dumps(sorted(params.items()))
        self._calls[key] += 1
        digest = int.from_bytes(sha256(key.encode()).digest()[:8])
        return self._run(params, np.random.default_rng([self.seed, digest, self._calls[key]]))

    def predicted_cost(self, params: Mapping[str, Any]) -> float:
        return self.base.predicted_cost(params)

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


@functools.lru_cache(maxsize=8)
def draws(mode: Mode, seed: int) -> list[dict[str, Any]]:
    """Returns configurations at random, the same for all searches."""
    from optuna.samplers import RandomSampler

    from tune_speed.tuning.policy.samplers import quiet_study

    # Beyond the seeds of searches: `random` could otherwise propose these very configurations.
    study, space = quiet_study(RandomSampler(seed=10_000 + seed)), Synthetic(1.0, mode, seed).space
    return [suggest(space, study.ask()) for _ in range(DRAWS)]


@functools.lru_cache(maxsize=8)
def _finals(mode: Mode, seed: int) -> list[float]:
    benchmark = Synthetic(1.0, mode, seed)
    curves = [benchmark.curve(params).metric for params in draws(mode, seed)]
    # `anytime` needs two evaluations in a row that hold, so the worse of the last two decides.
    num_last = 1 if mode == "fixed_length" else 2
    return [
        metric[-num_last:].min() if len(metric) and not np.isnan(metric).any() else 0.0
        for metric in curves
    ]
