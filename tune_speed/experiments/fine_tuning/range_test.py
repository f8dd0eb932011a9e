"""A range test: the loss over a learning rate that rises from step to step, and what it proposes.

Source: Smith, "Cyclical learning rates for training neural networks", 2017 (arXiv:1506.01186),
section 3.3, whose upper bound is where the improvement slows. Where we differ: the rate rises
exponentially, the loss is that of the batches, smoothed, and a rule reads the curve.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from tune_speed.components.optim.base import set_rates
from tune_speed.components.schedules.base import Factors
from tune_speed.reporting.plot_style import COLOURS, write_figure
from tune_speed.runtime.clock import Waits
from tune_speed.runtime.process import run_delay
from tune_speed.training.build import Job, build_forward
from tune_speed.training.loop import set_up
from tune_speed.training.step.batches import open_steps
from tune_speed.training.step.step import Stepper

LOWEST = 1e-5
HIGHEST = 0.3
STEPS = (40, 100)
"""Fewest and most of the test: as many as `LIMIT_S` allows by the time of the first few."""
TIMED = 4
LIMIT_S = 45.0
SMOOTHING = 0.9
FIRST = 10
"""Steps whose median is the loss that it falls from."""
DIVERGED = 4.0
"""Smoothed loss over the least one at which the test ends."""
NEAR = 0.1
"""Share of the loss's fall within which a loss is as good as the least; past that it diverges."""
SAFE = 0.7


class RateCurve(NamedTuple):
    """What a range test saw: rates in rising order, the smoothed loss of each step [nat]."""

    rates: Sequence[float]
    losses: Sequence[float]
    step_s: float = 0.0
    """Usual time of a step, without waits for a core [s]."""


class Range(NamedTuple):
    """Ends of the searched learning rates, and the one to begin with."""

    low: float
    start: float
    high: float


USUAL = Range(2e-4, 1e-3, 5e-3)
"""Usual for AdamW."""


def range_test(job: Job) -> RateCurve:
    """Trains for some steps whose rate rises from 1e-5 to 0.3, or until the loss diverges.

    The recipe's own rate must be `HIGHEST`. The first steps are timed at the lowest rate.
    """
    model, loader = set_up(job)
    stepper = Stepper(model, build_forward(model, job.recipe), job.recipe, device=job.device)
    job.recipe.speedups.begin(model, seed=job.seed)

    groups = open_steps(loader, job.recipe, [(job.shapes[0], TIMED + STEPS[1])], Waits())
    losses, times_s = list[float](), list[float]()
    waited_s = run_delay(job.device)

    def take(rate: float) -> None:
        began_s = time.perf_counter() - waited_s()
        set_rates(stepper.optimizer, Factors(lr=rate / HIGHEST, momentum=None))
        shape, group = next(groups)
        # Reading the loss waits for the device.
        losses.append(float(stepper.take(group, shape, frac=1.0)) / group.num_samples)
        times_s.append(time.perf_counter() - waited_s() - began_s)

    try:
        for _ in range(TIMED):
            take(LOWEST)
        num_steps = np.clip(LIMIT_S / median(times_s), *STEPS)
        rates = np.geomspace(LOWEST, HIGHEST, int(num_steps)).tolist()
        for rate in rates:
            take(rate)
            means = smoothed(losses)[TIMED:]
            if not means[-1] <= DIVERGED * min(means):  # NaN, too.
                losses.pop()
                break
    finally:
        loader.close()
    return RateCurve(rates[: len(losses) - TIMED], smoothed(losses)[TIMED:], median(times_s))


def smoothed(losses: Sequence[float]) -> list[float]:
    """Returns running means: s_k = Σ β^(k-i) l_i / Σ β^(k-i), i = 0 … k, with β = 0.9."""
    means, total, weight = list[float](), 0.0, 0.0
    for loss in losses:
        total = SMOOTHING * total + loss
        weight = SMOOTHING * weight + 1
        means.append(total / weight)
    return means


def proposed(tested: RateCurve) -> Range:
    """Returns the range around the rate at which the loss stops falling, and below divergence.

    It has stopped where all but `NEAR` of its fall is made; the plain run begins at `SAFE` times
    that rate. Where the loss does not fall, the range is `USUAL`.
    """
    losses, least = np.array(tested.losses), int(np.argmin(tested.losses))
    # The first losses fall at any rate: those of a fresh head are large, and few are averaged.
    fall = float(np.median(losses[:FIRST])) - losses[least]
    if least < 2 or fall <= 0:
        return USUAL
    is_near = losses <= losses[least] + NEAR * fall
    has_risen = ~is_near[least:]
    diverges = tested.rates[least + int(has_risen.argmax()) if has_risen.any() else -1]
    start = min(SAFE * tested.rates[int(is_near.argmax())], diverges / 4)
    ends = (start / 4, start, min(4 * start, diverges / 2))
    return Range(*(float(f"{rate:.2g}") for rate in ends))


def draw(tested: RateCurve, found: Range, path: Path) -> None:
    """Writes the curve, with the proposed range shaded. Raises: StorageError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    panel = figure.subplots()
    panel.axvspan(found.low, found.high, color=COLOURS[5], alpha=0.25, label="searched")
    panel.axvline(found.start, color=COLOURS[1], linestyle="--", label=f"plain run: {found.start}")
    panel.plot(tested.rates, tested.losses, color=COLOURS[0], label="training loss, smoothed")
    panel.set(xscale="log", xlabel="learning rate", ylabel="loss [nat]")
    panel.legend()
    write_figure(figure, path)
