"""Simulated searches as tables for a terminal, and as plots."""

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, cycle, groupby
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from tune_speed.core.text import ABSENT, Interval, counted
from tune_speed.reporting.leaderboard.text import describe_params
from tune_speed.reporting.plot_style import COLOURS, log_scales, write_figure
from tune_speed.reporting.table import Table
from tune_speed.tuning.simulation.benchmarks import Demonstration, Search
from tune_speed.tuning.simulation.scores import (
    BASELINE,
    NEAR,
    Overall,
    Score,
    best_at,
    overall,
    score,
)
from tune_speed.tuning.simulation.simulate import Incumbent, SimulatedTrial

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = TypeVar("Row")
DASHES = ("-", "--", "-.", ":")
MAX_COLUMNS = 3
PANEL_INCHES = (4.6, 3.3)
TITLE_WIDTH = 44
"""Characters of a line of a panel's title."""
POINTS = 400

FIRST_TRIALS = 20
"""Lines of the trial log that are shown."""

SCORE_COLUMNS: dict[str, Callable[[Score], str]] = {
    "policy": lambda row: row.policy,
    "best_s": lambda row: f"{row.best_s:.4g}",
    "missed": lambda row: f"{row.num_missed}/{row.num_seeds}",
    "best / vanilla": lambda row: ratio_text(row.best_ratio),
    "near_s": lambda row: f"{row.near_s:.4g}",
    "not near": lambda row: f"{row.num_not_near}/{row.num_seeds}",
    "near / vanilla": lambda row: ratio_text(row.near_ratio),
}
OVERALL_COLUMNS: dict[str, Callable[[Overall], str]] = {
    "policy": lambda row: row.policy,
    "budget": lambda row: f"{row.budget_runs:g} runs",
    "best / vanilla": lambda row: ratio_text(row.best_ratio),
    "worst benchmark": lambda row: f"{row.worst_ratio:.2f}",
    "near / vanilla": lambda row: ratio_text(row.near_ratio),
    "benchmarks": lambda row: str(row.num_benchmarks),
}
INCUMBENT_COLUMNS: dict[str, Callable[[Incumbent], str]] = {
    "virtual_s": lambda row: f"{row.virtual_s:.4g}",
    "time_to_target_s": lambda row: f"{row.time_to_target_s:.4g}",
    "searched": lambda row: describe_params(row.params),
}
TRIAL_COLUMNS: dict[str, Callable[[SimulatedTrial], str]] = {
    "trial": lambda row: row.trial_id,
    "started_s": lambda row: f"{row.started_s:.4g}",
    "train_s": lambda row: f"{row.train_s:.4g}",
    "status": lambda row: row.status.value,
    "why it ended": lambda row: row.stop_reason,
    "why it was proposed": lambda row: row.reason,
}
TEXT_COLUMNS = frozenset(
    {"policy", "searched", "trial", "status", "why it ended", "why it was proposed"}
)
"""Columns that are flush left."""


def ratio_text(ratio: Interval | None) -> str:
    """Returns `0.31 (0.22–0.45)`, without an interval where there is none."""
    return ABSENT if ratio is None else ratio.text(".2f", to="–")


def caption(searches: Sequence[Search]) -> str:
    terms, seeds = searches[0].terms, len({search.seed for search in searches})
    overhead = f", {terms.trial_overhead_s:g} s to start a trial" if terms.trial_overhead_s else ""
    return (
        f"{counted(terms.num_workers, 'worker')}{overhead}, {counted(seeds, 'seed')}; budgets in"
        " full runs' worth. best_s: best time to target [s], geometric mean over seeds; a seed that"
        " missed counts with the benchmark's longest run, which favours the loser."
        f" near_s: virtual time [s] until within {NEAR}x of the best time that any policy found; a"
        " seed that never was counts with the whole budget. Ratios: geometric means, with 95 %"
        " percentile bootstrap intervals over paired seeds."
    )


def comparison_tables(searches: Sequence[Search], budgets: Sequence[float]) -> RenderableType:
    scores = score(searches, budgets)
    parts: list[RenderableType] = []
    for (benchmark, budget_runs), rows in groupby(scores, lambda r: (r.benchmark, r.budget_runs)):
        parts.append(_table(f"{benchmark}, {budget_runs:g} full runs' worth", SCORE_COLUMNS, rows))
    ratios = overall(searches, budgets)
    if ratios:
        parts.append(_table("all benchmarks, geometric means", OVERALL_COLUMNS, ratios))
    return Group(*parts, Text(caption(searches), style="dim"))


def _table(title: str, columns: Mapping[str, Callable[[Row], str]], rows: Iterable[Row]) -> Table:
    cells = [{name: cell(row) for name, cell in columns.items()} for row in rows]
    return Table.of_rows(cells, left=TEXT_COLUMNS, title=title)


def demonstration_tables(shown: Demonstration) -> RenderableType:
    trials = shown.trace.trials
    counts = Counter(trial.status.value for trial in trials)
    ends = ", ".join(f"{number} {status}" for status, number in counts.most_common()) or "none"
    what = f"target {shown.benchmark.target:.4g}, {shown.benchmark.mode}"
    what += f", longest run {shown.benchmark.full_run_s:.4g} s"
    title = f"{shown.policy} on {shown.benchmark.name} ({what})"
    left = len(trials) - FIRST_TRIALS
    more = [Text(f"… and {left} more; --json has them all", style="dim")] if left > 0 else []
    bests = _table("each new best", INCUMBENT_COLUMNS, shown.trace.incumbents)
    found = bests if shown.trace.incumbents else Text("\nNo trial met the target.")
    first = _table("first trials", TRIAL_COLUMNS, trials[:FIRST_TRIALS])
    return Group(Text(title), found, first, *more, Text(f"{counted(len(trials), 'trial')}: {ends}"))


def plot_comparison(searches: Sequence[Search], budgets: Sequence[float], path: Path) -> None:
    """Writes a panel a benchmark: best time to target against virtual time, for each policy.

    Lines are medians over seeds, bands interquartile ranges; a seed that has not met the target yet
    counts with the longest run (dotted). Dashed lines are the budgets, in full runs' worth.

    Raises: StorageError if the file cannot be written.
    """
    write_figure(comparison_figure(searches, budgets), path)


def comparison_figure(searches: Sequence[Search], budgets: Sequence[float]) -> "Figure":
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
