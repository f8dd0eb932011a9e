"""A profile as a picture: the phases of a step as stacked bars, and the roofline next to them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tune_speed.core.errors import ConfigError
from tune_speed.experiments.profiling.result import Bounds, ProfileResult
from tune_speed.experiments.profiling.rows import (
    WORDS,
    PhaseRow,
    advice_texts,
    ms_text,
    phase_rows,
    title,
)
from tune_speed.reporting.plot_style import COLOURS, folded, log_scales, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
INCHES = (10.0, 5.4)
TITLE_WIDTH = 108
# Pieces that have room below the panels.
MOST_ADVICE = 3
PHASE_COLOURS = dict(zip(WORDS, [COLOURS[i] for i in (1, 4, 5, 0, 0, 2, 3, 6)], strict=True))
PLAIN_COLOUR = "#909090"
DARK = {COLOURS[0], COLOURS[1], COLOURS[2]}
"""Colours on which texts are white."""
# How far the roof is drawn beyond its ridge and the recipe, as a factor.
BEYOND = 8.0
LEAST_LABEL = 0.1
"""Share of the longest bar from which a phase has room for its figure."""
POINTS = 200


def check_format(path: Path) -> None:
    """Raises a ConfigError if no picture can be written in the format that `path` names."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"--out must be a file that ends in {', '.join(FORMATS)}, got {path}.")


def plot_profile(found: ProfileResult, path: Path) -> None:
    """Writes the picture, in the format of the path's suffix.

    Raises: StorageError if the file cannot be written.
    """
    write_figure(profile_figure(found), path)


def profile_figure(found: ProfileResult) -> "Figure":
    """Returns the figure of `plot_profile`; without counted operations there is no roofline."""
    # Matplotlib takes a second to import; a bare Figure draws without a window, by Agg.
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, layout="constrained")
    lines = (folded(part, TITLE_WIDTH) for part in title(found).split("; ", 1))
    figure.suptitle("\n".join(lines), fontsize="medium", x=0.01, ha="left")
    bounds = found.bounds
    columns = 1 if bounds is None else 2
    panels = figure.subplots(1, columns, squeeze=False, width_ratios=(1.0, 1.25)[:columns])[0]
    _draw_phases(panels[0], found)
    if bounds is not None:
        _draw_roofline(panels[1], found, bounds)
    advice = (f"advice: {text}" for text in advice_texts(found)[:MOST_ADVICE])
    lines = (folded(text, TITLE_WIDTH + 12) for text in advice)
    figure.supxlabel("\n".join(lines), fontsize="small", x=0.01, ha="left")
    return figure


def _draw_phases(panel: "Axes", found: ProfileResult) -> None:
    rows, times = [row for row in phase_rows(found) if row.ms], found.times
    tallest_ms = max(sum(row.ms or 0.0 for row in rows), times.step_high_ms)
    bottom_ms = 0.0
    for row in rows:
        _stack(panel, row, bottom_ms, tallest_ms)
        bottom_ms += row.ms or 0.0
    panel.bar(1, times.step_ms, width=0.6, color=PLAIN_COLOUR, label="a step as it runs")
    spread = ([times.step_ms - times.step_low_ms], [times.step_high_ms - times.step_ms])
    label = "fastest to slowest block"
    panel.errorbar([1.36], [times.step_ms], spread, fmt="none", ecolor="black", label=label)
    style: dict[str, Any] = {"ha": "center", "va": "bottom", "size": "small"}
    for x, height_ms in ((0, bottom_ms), (1, times.step_ms)):
        panel.text(x, height_ms + 0.01 * tallest_ms, ms_text(height_ms), **style)
    panel.set_xticks([0, 1], ["phases, with borders", "as it runs"], size="small")
    panel.set_xlim(-0.5, 1.5)
    panel.set_ylim(0, 1.1 * tallest_ms)
    panel.set_ylabel("time of an optimizer step [ms]", size="small")
    panel.grid(axis="y", alpha=0.25)
    panel.set_axisbelow(True)
    _small_texts(panel, legend_columns=2)


def _stack(panel: "Axes", row: PhaseRow, bottom_ms: float, tallest_ms: float) -> None:
    height_ms, colour = row.ms or 0.0, PHASE_COLOURS[row.phase]
    label = f"{row.words}, {row.share:.1%}"
    panel.bar(0, height_ms, width=0.6, bottom=bottom_ms, color=colour, label=label)
    if height_ms < LEAST_LABEL * tallest_ms:
        return
    style: dict[str, Any] = {"ha": "center", "va": "center", "size": "small"}
    style["color"] = "white" if colour in DARK else "black"
    panel.text(0, bottom_ms + height_ms / 2, f"{row.words}\n{ms_text(height_ms)}", **style)


def _small_texts(panel: "Axes", *, legend_columns: int) -> None:
    """Gives the panel small ticks, and a legend below it."""
    panel.tick_params(labelsize="small")
    below: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.13)}
    panel.legend(**below, ncols=legend_columns, fontsize="x-small", frameon=False)


def _draw_roofline(panel: "Axes", found: ProfileResult, bounds: Bounds) -> None:
    """Draws min(R, I · W) over the intensity I, and the recipe below it."""
    own = found.rates.matrix_tflop_per_s[found.precision]
    # 10¹² byte/s, so that I · W is in TFLOP/s.
    memory = found.rates.memory_gb_per_s / 1e3
    intensity, achieved = bounds.intensity_flop_per_byte, bounds.achieved_tflop_per_s
    ends = sorted((own / memory, intensity))
    across = np.geomspace(ends[0] / BEYOND, ends[1] * BEYOND, POINTS)
    roof = np.minimum(own, across * memory)
    label = f"{own:.3g} TFLOP/s in {found.precision}, {found.rates.memory_gb_per_s:.3g} GB/s"
    panel.plot(across, roof, color="black", lw=1.8, label=f"measured roof: {label}")
    rates = found.rates.matrix_tflop_per_s
    others = {name: rate for name, rate in rates.items() if name != found.precision}
    for colour, (name, rate) in zip(COLOURS[2:], others.items(), strict=False):
        label = f"matrix products in {name}: {rate:.3g} TFLOP/s"
        panel.axhline(rate, color=colour, lw=1.2, linestyle="--", label=label)
    label = (
        f"up to the bounds: arithmetic {ms_text(bounds.compute_bound_ms)},"
        f" memory about {ms_text(bounds.memory_bound_ms)}"
    )
    top = min(own, intensity * memory)
    panel.plot([intensity, intensity], [achieved, top], ":", color=COLOURS[0], lw=1.8, label=label)
    label = f"this recipe: {achieved:.3g} TFLOP/s, {bounds.peak_frac:.0%} of the matrix rate"
    style: dict[str, Any] = {"color": COLOURS[1], "markersize": 8, "linestyle": "none"}
    panel.plot(intensity, achieved, "o", label=label, **style)
    log_scales(panel)
    panel.set_xlim(across[0], across[-1])
    panel.set_ylim(min(achieved / 2, float(roof[0])), 2 * max(rates.values()))
    panel.set_xlabel("operations over bytes moved (estimate) [FLOP/byte]", size="small")
    panel.set_ylabel("rate [TFLOP/s]", size="small")
    panel.grid(alpha=0.25)
    _small_texts(panel, legend_columns=1)
