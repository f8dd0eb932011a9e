"""Plots of simulated searches."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import chain, cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tune_speed.core.errors import ConfigError
from tune_speed.reporting.plot_style import COLOURS, log_scales, write_figure
from tune_speed.tuning.simulation.comparison import Search
from tune_speed.tuning.simulation.scores import BASELINE, best_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("-", "--", "-.", ":")
MAX_COLUMNS = 3
PANEL_INCHES = (4.6, 3.3)
FORMATS = (".png", ".pdf", ".svg")
TITLE_WIDTH = 44
"""Characters of a line of a panel's title."""
POINTS = 400


def check_format(path: Path) -> None:
    """Raises a ConfigError if no plot can be written in the format that `path` names."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"--plot must be a file that ends in {', '.join(FORMATS)}, got {path}.")


def plot_comparison(searches: Sequence[Search], budgets: Sequence[float], path: Path) -> None:
    """Writes a panel a benchmark: best time to target against virtual time, for each policy.

    Lines are medians over seeds, bands interquartile ranges; a seed that has not met the target yet
    counts with the longest run (dotted). Dashed lines are the budgets, in full runs' worth.

    Raises: StorageError if the file cannot be written.
    """
    write_figure(comparison_figure(searches, budgets), path)


def comparison_figure(searches: Sequence[Search], budgets: Sequence[float]) -> "Figure":
    """Returns the figure of `plot_comparison`."""
    # Matplotlib takes a second to import; a bare Figure draws without a window, by Agg.
    from matplotlib.figure import Figure

    benchmarks = list(dict.fromkeys(search.benchmark for search in searches))
    policies = dict.fromkeys(search.policy for search in searches)
    # Without dashes, lines that lie on one another would look like one.
    looks = zip(cycle(COLOURS), cycle(DASHES), strict=False)
    styles = {name: ("#808080", "-") if name == BASELINE else next(looks) for name in policies}
    num_columns = min(MAX_COLUMNS, len(benchmarks))
    num_rows = math.ceil(len(benchmarks) / num_columns)
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * num_columns, height * num_rows + 0.6), layout="constrained")
    panels = figure.subplots(num_rows, num_columns, squeeze=False).flat
    for benchmark, panel in zip(benchmarks, panels, strict=False):
        own = [search for search in searches if search.benchmark == benchmark]
        _draw(panel, own, budgets, styles)
    for panel in list(panels):
        panel.set_visible(False)
    drawn = [zip(*panel.get_legend_handles_labels(), strict=True) for panel in figure.axes]
    named = {label: line for line, label in chain.from_iterable(drawn)}
    lines = list(named.values())
    figure.legend(lines, list(named), loc="outside lower center", ncols=len(named), frameon=False)
    return figure


def _draw(
    panel: "Axes",
    searches: Sequence[Search],
    budgets: Sequence[float],
    styles: Mapping[str, tuple[str, str]],
) -> None:
    full_run_s, terms = searches[0].full_run_s, searches[0].terms
    limits_s = [terms.budget_s(runs, full_run_s) for runs in budgets]
    starts_s = [search.incumbents[0][0] for search in searches if search.incumbents]
    first_s = max(1e-9, 0.7 * min(starts_s, default=max(limits_s) / 10))
    virtual_s = np.geomspace(min(first_s, max(limits_s) / 2), max(limits_s), POINTS)
    for policy, (colour, dash) in styles.items():
        own = [search for search in searches if search.policy == policy]
        if own:
            bests_s = [[min(best_at(s, at_s), full_run_s) for at_s in virtual_s] for s in own]
            low, median, high = np.exp(np.quantile(np.log(bests_s), [0.25, 0.5, 0.75], axis=0))
            panel.plot(virtual_s, median, dash, color=colour, label=policy, lw=1.8)
            panel.fill_between(virtual_s, low, high, color=colour, alpha=0.13, lw=0)
    panel.axhline(full_run_s, color="black", linestyle=":", linewidth=0.8)
    for runs, limit_s in zip(budgets, limits_s, strict=True):
        panel.axvline(limit_s, color="black", linestyle="--", linewidth=0.6, alpha=0.5)
        top = panel.get_xaxis_transform()
        panel.text(limit_s, 0.01, f"{runs:g} runs ", ha="right", va="bottom", transform=top, size=7)
    panel.set(xlabel="virtual time [s]", ylabel="best time to target [s]")
    panel.set_title(textwrap.fill(searches[0].benchmark, TITLE_WIDTH), fontsize="medium")
    panel.grid(alpha=0.25)
    # Matplotlib finds no limits for a flat line.
    lowest_s = min([best_at(search, max(limits_s)) for search in searches] + [full_run_s])
    panel.set_ylim(0.8 * lowest_s, 1.2 * full_run_s)
    log_scales(panel)
