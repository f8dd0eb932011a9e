"""A synthetic trainer: what each setting does to time and accuracy is planted, and so is known.

ln(epoch_s) and accuracy of an arm with settings x (0 or 1 each) and a seed are
    base + Σ effect_i · x_i + pair · x_0 · x_1 + drift(seed) + noise(arm, seed)
with normal drift, the same for all arms of a seed (a machine that gets warm, an easy seed), and
normal noise whose spread differs from arm to arm.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tune_speed.experiments.ablation.design import Arm, Axis, arms_of, read_axes
from tune_speed.experiments.ablation.effects import Contrast, contrasts_of

AXES: tuple[Axis, ...] = read_axes(
    {"accumulation_steps": 2, "precision": "bf16", "loader.pin_memory": True}
)
ARMS: tuple[Arm, ...] = arms_of(AXES, "factorial")
CONTRASTS: tuple[Contrast, ...] = contrasts_of(AXES, ARMS)
Values = dict[str, dict[int, float]]


class Planted(NamedTuple):
    base: float
    effects: tuple[float, float, float]
    pair: float
    """What the first two settings do together beyond what each does."""
    drift: float
    """Standard deviation between seeds."""
    noise: tuple[float, float]
    """Standard deviations of the steadiest and of the noisiest arm."""

    def response(self, arm: Arm) -> float:
        """Returns the arm's response without drift and noise."""
        x = arm.levels
        single = sum(effect * on for effect, on in zip(self.effects, x, strict=True))
        return self.base + single + self.pair * x[0] * x[1]

    def studies(self, num: int, *, seeds: int = 5, stream: int = 0) -> Iterator[Values]:
        """Yields `num` repetitions of a study, each with every arm on every seed."""
        random = np.random.default_rng(stream)
        means = np.array([self.response(arm) for arm in ARMS])
        spreads = np.linspace(*self.noise, len(ARMS))
        drift = self.drift * random.standard_normal((num, 1, seeds))
        noise = spreads[:, None] * random.standard_normal((num, len(ARMS), seeds))
        for rows in (means[:, None] + drift + noise).tolist():
            yield {arm.name: dict(enumerate(row)) for arm, row in zip(ARMS, rows, strict=True)}


LN_SPEED = Planted(-3.0, (0.02, 0.45, 0.10), -0.12, drift=0.2, noise=(0.01, 0.08))
"""bf16 1.57 times as fast and pinned memory 1.11 times; accumulation spoils part of the gain."""
ACCURACY = Planted(0.90, (0.004, -0.006, 0.0), 0.003, drift=0.01, noise=(0.001, 0.006))
NOTHING = Planted(-3.0, (0.0, 0.0, 0.0), 0.0, drift=0.2, noise=(0.01, 0.08))


def truth(contrast: Contrast, planted: Planted) -> float:
    """Returns the planted effect of a factorial, from definitions rather than from weights."""
    a, b, c = planted.effects
    size = {
        "accumulation_steps=2": a, "precision=bf16": b, "loader.pin_memory=true": c,
    }  # fmt: skip
    labels = contrast.name.split(" × ")
    is_in_pair = {"accumulation_steps=2", "precision=bf16"}
    if contrast.kind == "interaction":
        return planted.pair * (is_in_pair <= set(labels))
    return size[contrast.name] + planted.pair / 2 * (contrast.name in is_in_pair)
