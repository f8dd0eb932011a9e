"""The upright axis of a metric, with its target: near 1 it counts what is left to 1."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tune_speed.core.targets import Target
from tune_speed.reporting.figures.canvas import Canvas
from tune_speed.reporting.figures.facts import metric_words
from tune_speed.reporting.figures.scales import scale
from tune_speed.reporting.figures.texts import score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

STEEP_FROM = 0.8
"""Shares are drawn on a scale of errors from this target on: 0.98 is to 0.96 as 0.8 to 0.6."""
TICKS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)
LEAST_ERROR = 5e-4
TICK_GAP = 0.09
"""Least distance of two ticks, as a share of the axis."""


def draw_metric_axis(
    canvas: Canvas, panel: "Axes", values: Sequence[float], target: Target
) -> tuple["Line2D", str]:
    """Scales the upright axis for `values`, and draws the target across.

    Returns the target's entry in a legend.
    """
    shown = [*values, target.value]
    if not target.is_share or target.value < STEEP_FROM:
        scale(panel.yaxis, [])
        low, high = min(shown), max(shown)
        room = 0.07 * ((high - low) or abs(high) or 1.0)
        panel.set_ylim(low - room, high + 1.8 * room)
    else:
        _scale_errors(panel, shown)
    line = panel.axhline(target.value, color=canvas.palette["ink"], linestyle="--", linewidth=1.0)
    canvas.title(panel, metric_words(target))
    return line, f"target {score(target.value)}"


def steep(metric: ArrayLike) -> NDArray[np.float64]:
    """Returns the height of a metric on a scale of errors."""
    height: NDArray[np.float64] = -np.log10(
        np.maximum(1 - np.asarray(metric, dtype=float), LEAST_ERROR)
    )
    return height


def _from_steep(height: ArrayLike) -> NDArray[np.float64]:
    metric: NDArray[np.float64] = 1 - 10 ** -np.asarray(height, dtype=float)
    return metric


def _scale_errors(panel: "Axes", values: Sequence[float]) -> None:
    from matplotlib.ticker import NullLocator

    panel.set_yscale("function", functions=(steep, _from_steep))
    low, high = (float(height) for height in steep([min(values), max(values)]))
    room = 0.07 * (high - low)
    bottom, top = _from_steep([low - room, high + 1.8 * room])
    shown = _spread([t for t in TICKS if bottom <= t <= top], gap=TICK_GAP * (high - low))
    panel.set_yticks(shown, [score(tick) for tick in shown])
    panel.yaxis.set_minor_locator(NullLocator())
    panel.set_ylim(float(bottom), float(top))


def _spread(ticks: Sequence[float], *, gap: float) -> list[float]:
    """Returns the ticks from the top on that do not come too near to one another."""
    kept: list[float] = []
    for tick in reversed(ticks):
        if not kept or float(steep(kept[-1]) - steep(tick)) >= gap:
            kept.append(tick)
    return kept[::-1]
