"""Scales of axes, with plain numbers on them."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tune_speed.reporting.figures.texts import TimeUnit, number

if TYPE_CHECKING:
    from matplotlib.axis import Axis

NUM_TICKS = 5


def spans_decade(values: Iterable[float]) -> bool:
    """Returns whether the values are positive and the largest is ten times the least or more."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) >= 10 * min(finite)


def scale(axis: "Axis", values: Sequence[float], *, num_ticks: int = NUM_TICKS) -> bool:
    """Gives an axis plain numbers, and a logarithmic scale where the values span a decade.

    Returns whether it is logarithmic.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    is_log = spans_decade(values)
    if is_log:
        panel = axis.axes
        (panel.set_xscale if axis is panel.xaxis else panel.set_yscale)("log")
        subs = _subs(min(values), max(values), num_ticks)
        axis.set_major_locator(LogLocator(subs=subs, numticks=num_ticks + 1))
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(nbins=num_ticks, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    return is_log


def _subs(low: float, high: float, num_ticks: int) -> Sequence[float]:
    """Returns multiples of powers of ten that give a logarithmic axis so many ticks at most."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    choices = ((1.0, 2.0, 5.0), (1.0, 3.0))
    for subs in choices:
        if sum(low <= sub * 10.0**power <= high for power in powers for sub in subs) <= num_ticks:
            return subs
    return (1.0,)


def unit_label(name: str, unit: TimeUnit) -> str:
    """Returns `training time [s]`."""
    return f"{name} [{unit.name}]"
