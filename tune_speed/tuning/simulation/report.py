"""Simulated searches as tables for a terminal, and as Markdown."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tune_speed.reporting.leaderboard.text import describe_params
from tune_speed.tuning.simulation.benchmarks import Demonstration
from tune_speed.tuning.simulation.comparison import Search
from tune_speed.tuning.simulation.scores import NEAR, Overall, Ratio, Score, overall, score

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
        f"{terms.num_workers} workers{overhead}, {seeds} seeds; budgets in full runs' worth."
        " best_s: best time to target [s], geometric mean over seeds; a seed that missed counts"
        " with the benchmark's longest run, which favours the loser."
        f" near_s: virtual time [s] until within {NEAR}x of the best time that any policy found; a"
        " seed that never was counts with the whole budget. Ratios: geometric means, with 95 %"
        " percentile bootstrap intervals over paired seeds."
    )


def comparison_tables(searches: Sequence[Search], budgets: Sequence[float]) -> RenderableType:
    """Returns a comparison as tables for a terminal of 100 columns."""
    scores = score(searches, budgets)
    groups = dict.fromkeys((row.benchmark, row.budget_runs) for row in scores)
    parts: list[RenderableType] = []
    for benchmark, budget_runs in groups:
        rows = [r for r in scores if (r.benchmark, r.budget_runs) == (benchmark, budget_runs)]
        parts.append(_table(f"{benchmark}, {budget_runs:g} full runs' worth", SCORE_COLUMNS, rows))
    ratios = overall(searches, budgets)
    if ratios:
        parts.append(_table("all benchmarks, geometric means", OVERALL_COLUMNS, ratios))
    return Group(*parts, Text(caption(searches), style="dim"))


def _table(title: str, columns: Mapping[str, Callable[[Row], str]], rows: Sequence[Row]) -> Table:
    table = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, justify="left" if name == "policy" else "right", overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell(row)) for cell in columns.values()))
    return table


def comparison_markdown(searches: Sequence[Search], budgets: Sequence[float]) -> str:
    """Returns a comparison as Markdown: benchmarks down, policies across, then the ratios."""
    scores = score(searches, budgets)
    parts = []
    for budget_runs in budgets:
        within = [row for row in scores if row.budget_runs == budget_runs]
        title = f"within {budget_runs:g} full runs' worth (ratio to vanilla)"
        parts.append(f"**Best time to target [s]** {title}\n")
        parts.append(_matrix(within, _best_cell))
        parts.append(f"**Time until within {NEAR}x of the best known [s]** {title}\n")
        parts.append(_matrix(within, _near_cell))
    ratios = overall(searches, budgets)
    if ratios:
        cells = [[cell(row) for cell in OVERALL_COLUMNS.values()] for row in ratios]
        parts += ["**All benchmarks**, geometric means\n", _markdown(list(OVERALL_COLUMNS), cells)]
    return "\n".join([*parts, caption(searches), ""])


def _best_cell(row: Score) -> str:
    return _cell(row.best_s, row.best_ratio, row.num_missed, row.num_seeds, "missed")


def _near_cell(row: Score) -> str:
    return _cell(row.near_s, row.near_ratio, row.num_not_near, row.num_seeds, "never")


def _cell(value_s: float, ratio: Ratio | None, failed: int, seeds: int, what: str) -> str:
    parts = [f"{value_s:.4g}"]
    parts += [ratio_text(ratio)] if ratio else []
    parts += [f"{failed}/{seeds} {what}"] if failed else []
    return "; ".join(parts)


def _matrix(scores: Sequence[Score], cell: Callable[[Score], str]) -> str:
    policies = list(dict.fromkeys(row.policy for row in scores))
    rows: dict[str, dict[str, str]] = {}
    for row in scores:
        rows.setdefault(row.benchmark, {})[row.policy] = cell(row)
    cells = [[name, *(row.get(policy, "–") for policy in policies)] for name, row in rows.items()]
    return _markdown(["benchmark", *policies], cells)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def demonstration_tables(shown: Demonstration) -> RenderableType:
    """Returns one search: its bests, its first trials with their reasons, and how all ended."""
    trials = shown.trace.trials
    counts = Counter(trial.status.value for trial in trials)
    ends = ", ".join(f"{number} {status}" for status, number in counts.most_common()) or "none"
    goal = f"target {shown.benchmark.target:.4g}, {shown.benchmark.mode}"
    goal += f", longest run {shown.full_run_s:.4g} s"
    title = f"{shown.policy} on {shown.benchmark.name} ({goal})"
    left = len(trials) - FIRST_TRIALS
    more = [Text(f"… and {left} more; --json has them all", style="dim")] if left > 0 else []
    return Group(
        Text(title),
        _incumbents(shown) if shown.trace.incumbents else Text("\nNo trial met the target."),
        _log(shown),
        *more,
        Text(f"{len(trials)} trials: {ends}"),
    )


def _incumbents(shown: Demonstration) -> Table:
    table = Table(title="each new best", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("virtual_s", justify="right")
    table.add_column("time_to_target_s", justify="right")
    table.add_column("searched", overflow="fold")
    for incumbent in shown.trace.incumbents:
        times = (f"{incumbent.virtual_s:.4g}", f"{incumbent.time_to_target_s:.4g}")
        table.add_row(*times, escape(describe_params(incumbent.params)))
    return table


def _log(shown: Demonstration) -> Table:
    table = Table(title="first trials", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("trial")
    for name in ("started_s", "train_s"):
        table.add_column(name, justify="right")
    for name in ("status", "why it ended", "why it was proposed"):
        table.add_column(name, overflow="fold")
    for trial in shown.trace.trials[:FIRST_TRIALS]:
        table.add_row(
            trial.trial_id,
            f"{trial.started_s:.4g}",
            f"{trial.train_s:.4g}",
            trial.status.value,
            escape(trial.stop_reason),
            escape(trial.reason),
        )
    return table
