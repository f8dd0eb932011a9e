"""Axes: scales with plain numbers on them, and the upright axis of a metric with its target."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tune_speed.core.targets import Target
from tune_speed.reporting.figures.canvas import Canvas
from tune_speed.reporting.figures.facts import metric_words, number, score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.lines import Line2D

NUM_TICKS = 5
# Shares are drawn on a scale of errors from this target on: 0.98 is to 0.96 as 0.8 to 0.6.
STEEP_FROM = 0.8
TICKS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)
# A metric of 1 has no place on a scale of errors: it is drawn where 0.9995 is.
LEAST_ERROR = 5e-4
# Least distance of two ticks, as a share of the axis.
TICK_GAP = 0.09


def spans_decade(values: Iterable[float]) -> bool:
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) >= 10 * min(finite)


def scale(axis: "Axis", values: Sequence[float], *, num_ticks: int = NUM_TICKS) -> bool:
    """Gives an axis plain numbers, and a log scale if values span a decade; returns if they do."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    is_log = spans_decade(values)
    if is_log:
        panel = axis.axes
        (panel.set_xscale if axis is panel.xaxis else panel.set_yscale)("log")
        subs = _subs(min(values), max(values), num_ticks)
        axis.set_major_locator(LogLocator(subs=subs, numticks=num_ticks + 1))
        # On a short axis matplotlib labels minor ticks too, as powers of ten.
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(nbins=num_ticks, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    return is_log


def _subs(low: float, high: float, num_ticks: int) -> Sequence[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for subs in ((1.0, 2.0, 5.0), (1.0, 3.0)):
        if sum(low <= sub * 10.0**power <= high for power in powers for sub in subs) <= num_ticks:
            return subs
    return (1.0,)


def padded(
    values: Sequence[float], below: float, above: float, *, is_log: bool
) -> tuple[float, float]:
    """Returns the ends of an axis, with room as shares of its span (of a fifth of equal values)."""
    low, high = min(values), max(values)
    if is_log:
        return low / (high / low) ** below, high * (high / low) ** above
    span = high - low or 0.2 * high
    return low - below * span, high + above * span


def draw_metric_axis(
    canvas: Canvas, panel: "Axes", values: Sequence[float], target: Target
) -> tuple["Line2D", str]:
    """Scales the upright axis; draws target or best across, and returns its legend entry."""
    best = max if target.mode == "max" else min
    across, what = target.value, "target"
    if target.seeks_best:
        across, what = best(values), "best"
    shown, words = [*values, across], metric_words(target)
    if not target.is_share or across < STEEP_FROM:
        scale(panel.yaxis, [])
        low, high = min(shown), max(shown)
        room = 0.07 * ((high - low) or abs(high) or 1.0)
        panel.set_ylim(low - room, high + 1.8 * room)
    else:
        _scale_errors(panel, shown)
        words += f" (logarithmic in the error, 1 − {words})"
    line = panel.axhline(across, color=canvas.palette["ink"], linestyle="--", linewidth=1.0)
    canvas.title(panel, words)
    return line, f"{what} {score(across)}"


def steep(metric: ArrayLike) -> NDArray[np.float64]:
    error = np.maximum(1 - np.asarray(metric, dtype=float), LEAST_ERROR)
    return np.asarray(-np.log10(error))


def _from_steep(height: ArrayLike) -> NDArray[np.float64]:
    return np.asarray(1 - 10 ** -np.asarray(height, dtype=float))


def _scale_errors(panel: "Axes", values: Sequence[float]) -> None:
    from matplotlib.ticker import NullLocator

    panel.set_yscale("function", functions=(steep, _from_steep))
    low, high = (float(height) for height in steep([min(values), max(values)]))
    room = 0.07 * (high - low)
    bottom, top = _from_steep([low - room, high + 1.8 * room])
    # From the top on, without those that come too near to the one above.
    shown: list[float] = []
    for tick in [tick for tick in reversed(TICKS) if bottom <= tick <= top]:
        if not shown or float(steep(shown[0]) - steep(tick)) >= TICK_GAP * (high - low):
            shown.insert(0, tick)
    panel.set_yticks(shown, [score(tick) for tick in shown])
    panel.yaxis.set_minor_locator(NullLocator())
    panel.set_ylim(float(bottom), float(top))
