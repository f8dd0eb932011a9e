"""Simulated searches as tables for a terminal."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

from rich import box
from rich.console import Group, JustifyMethod, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tune_speed.core.text import counted
from tune_speed.reporting.leaderboard.text import describe_params
from tune_speed.tuning.simulation.benchmarks import Demonstration
from tune_speed.tuning.simulation.comparison import Search
from tune_speed.tuning.simulation.scores import NEAR, Overall, Ratio, Score, overall, score
from tune_speed.tuning.simulation.simulate import Incumbent, SimulatedTrial

Row = TypeVar("Row")

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


def ratio_text(ratio: Ratio | None) -> str:
    """Returns `0.31 (0.22–0.45)`, without an interval where there is none."""
    if ratio is None:
        return "–"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}"
    return f"{ratio.value:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"


def caption(searches: Sequence[Search]) -> str:
    """Returns what the columns of a comparison mean."""
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
    """Returns a comparison as tables for a terminal of 100 columns."""
    scores = score(searches, budgets)
    parts: list[RenderableType] = []
    for (benchmark, budget_runs), rows in groupby(scores, lambda r: (r.benchmark, r.budget_runs)):
        parts.append(_table(f"{benchmark}, {budget_runs:g} full runs' worth", SCORE_COLUMNS, rows))
    ratios = overall(searches, budgets)
    if ratios:
        parts.append(_table("all benchmarks, geometric means", OVERALL_COLUMNS, ratios))
    return Group(*parts, Text(caption(searches), style="dim"))


def _table(title: str, columns: Mapping[str, Callable[[Row], str]], rows: Iterable[Row]) -> Table:
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD)
    for name in columns:
        justify: JustifyMethod = "left" if name in TEXT_COLUMNS else "right"
        table.add_column(name, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell(row)) for cell in columns.values()))
    return table


def demonstration_tables(shown: Demonstration) -> RenderableType:
    """Returns one search: its bests, its first trials with their reasons, and how all ended."""
    trials = shown.trace.trials
    counts = Counter(trial.status.value for trial in trials)
    ends = ", ".join(f"{number} {status}" for status, number in counts.most_common()) or "none"
    what = f"target {shown.benchmark.target:.4g}, {shown.benchmark.mode}"
    what += f", longest run {shown.full_run_s:.4g} s"
    title = f"{shown.policy} on {shown.benchmark.name} ({what})"
    left = len(trials) - FIRST_TRIALS
    more = [Text(f"… and {left} more; --json has them all", style="dim")] if left > 0 else []
    bests = _table("each new best", INCUMBENT_COLUMNS, shown.trace.incumbents)
    found = bests if shown.trace.incumbents else Text("\nNo trial met the target.")
    first = _table("first trials", TRIAL_COLUMNS, trials[:FIRST_TRIALS])
    return Group(Text(title), found, first, *more, Text(f"{counted(len(trials), 'trial')}: {ends}"))
