"""What a replication found as tables for a terminal, and as rows for CSV and Markdown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tune_speed.core.text import printable, printable_lines
from tune_speed.experiments.replication.agreement import Agreement
from tune_speed.experiments.replication.outcome import CheckRow, Outcome
from tune_speed.reporting.table import Table as TextTable
from tune_speed.reporting.table import escape_markdown

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text

ABSENT = "–"
INFINITE = "∞"
ROUNDING = 1e-9
"""Differences below this are those of sums in another order."""
NO_FIGURE = "no figure"
"""In the place of the paper's, where the source has none."""
CLAIM, SOURCE, NOTES, AGREES = "claim", "source", "notes", "agrees?"
WORDS = (CLAIM, "question", "expected", "ours", AGREES)
"""Columns of words, on the left; figures are on the right."""
ROOMY = 130
"""From so many characters on, our interval stands beside our figure, else below it."""
NARROW = 100
"""With fewer, verdicts have one word a line, and points stand below their number."""
VERDICT_WIDTHS = {NARROW: len("applicable"), ROOMY: len("not applicable")}
"""Characters of a verdict before it is folded, where there are fewer than so many in all."""


def as_renderables(outcome: Outcome) -> tuple["RenderableType", ...]:
    """Returns title, tables of claims and of checks where there are any, and the caveats."""
    from rich.console import Group
    from rich.text import Text

    notes = _numbered(outcome.rows)
    tables: list[RenderableType] = []
    if outcome.rows:
        tables.append(_ByWidth(lambda width: _claims_table(outcome.rows, notes, width=width)))
    if outcome.checks:
        checks = [_check_cells(row) for row in outcome.checks]
        tables.append(_ByWidth(lambda width: _table(checks, width=width)))
    heading = Text(printable(title(outcome)), style="italic")
    about = Text(printable(circumstances(outcome)), style="dim")
    below = [Text(printable(line), style="dim") for line in _below(outcome, notes)]
    shown = [Group(Text(), table) for table in tables]
    return (Group(heading, about), *shown, Group(Text(), *below, Text()))


def markdown(outcome: Outcome) -> str:
    """Returns the same as Markdown."""
    notes = _numbered(outcome.rows)
    tables = [[_claim_cells(row, notes) for row in outcome.rows]]
    tables.append([_check_cells(row) for row in outcome.checks])
    lines = [
        f"**{escape_markdown(title(outcome))}**",
        "",
        escape_markdown(circumstances(outcome)),
        "",
    ]
    for rows in filter(None, tables):
        lines += [TextTable.of_rows(rows).markdown(), ""]
    below = [f"- {escape_markdown(line)}" for line in _below(outcome, notes)]
    return "\n".join([*lines, *below, *([""] if below else [])])


def csv_rows(outcome: Outcome) -> list[dict[str, Any]]:
    """Returns a row on each claim and then on each check, with all fields and exact figures."""
    claims = [_claim_row(row) for row in outcome.rows]
    checks = [_check_row(row) for row in outcome.checks]
    about = {
        "replication": outcome.name,
        "items": " ".join(map(str, outcome.items)),
        "profile": outcome.profile,
        "device": "; ".join(outcome.devices),
    }
    names = list(dict.fromkeys(name for row in [*claims, *checks] for name in row))
    return [{**about, **{name: row.get(name) for name in names}} for row in [*claims, *checks]]


def title(outcome: Outcome) -> str:
    """Returns which experiment it is, and what it asks."""
    items = ", ".join(map(str, outcome.items))
    numbers = f" ({'item' if len(outcome.items) == 1 else 'items'} {items})" if items else ""
    return f"{outcome.name}{numbers}: {outcome.title} {outcome.question}"


def circumstances(outcome: Outcome) -> str:
    """Returns profile, what the user changed about it, device and number of runs."""
    about = f": {outcome.about}" if outcome.about else ""
    sentences = [f"Profile {outcome.profile}{about}".removesuffix(".") + "."]
    if outcome.overrides:
        sentences.append(f"Changed with --set {', '.join(outcome.overrides)}.")
    if outcome.planned_runs:
        seeds = " or ".join(map(str, outcome.seeds))
        where = f" on {', '.join(outcome.devices)}" if outcome.devices else ""
        runs = f"{outcome.done_runs} of {outcome.planned_runs} runs{where}"
        sentences.append(f"{runs}, {seeds} {'run' if seeds == '1' else 'runs'} an arm.")
    return " ".join(sentences)


def _numbered(rows: Sequence[Agreement]) -> dict[str, int]:
    """Returns a number for each caveat of the rows, which may share them."""
    caveats = dict.fromkeys(caveat for row in rows for caveat in row.caveats)
    return {caveat: number for number, caveat in enumerate(caveats, start=1)}


def _below(outcome: Outcome, notes: Mapping[str, int]) -> list[str]:
    return [*(f"[{number}] {_sentence(text)}" for text, number in notes.items()), *outcome.caveats]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".removesuffix(".") + "."


def _claim_cells(row: Agreement, notes: Mapping[str, int]) -> dict[str, str]:
    part = f" ({row.part})" if row.part else ""
    return {
        CLAIM: row.claim + part,
        SOURCE: row.source,
        "paper": NO_FIGURE if row.paper is None else with_unit(row.paper, row.unit),
        "ours (95 %)": ours_text(row),
        "n": str(row.n) if row.n else ABSENT,
        "ratio": ABSENT if row.ratio is None else f"{row.ratio:.2f}",
        AGREES: row.agrees,
        NOTES: " ".join(f"[{notes[caveat]}]" for caveat in row.caveats),
    }


def ours_text(row: Agreement) -> str:
    """Returns `1.42× (1.31–1.55)`, without brackets where there is no interval."""
    if row.ours is None and not row.is_infinite:
        return ABSENT
    value = INFINITE if row.ours is None else with_unit(row.ours, row.unit)
    if row.low is None:
        return value
    high = INFINITE if row.high is None else _digits(row.high)
    between = " to " if row.low < 0 else "–"
    return f"{value} ({_digits(row.low)}{between}{high})"


def with_unit(value: float, unit: str) -> str:
    """Returns `1.42×` or `93.1 %`."""
    return f"{_digits(value)}{'' if unit == '×' else ' '}{unit}"


def _digits(value: float) -> str:
    """Returns two decimals: fewer of large figures, two digits of small ones."""
    if abs(value) < ROUNDING:
        return "0"
    places = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f"{value:.{places}f}" if abs(value) >= 0.1 else f"{value:.2g}"


def _check_cells(row: CheckRow) -> dict[str, str]:
    return {
        "question": row.question,
        "expected": row.expected + (f" ({row.source})" if row.source else ""),
        "ours": row.ours,
        AGREES: row.agrees,
    }


def _claim_row(row: Agreement) -> dict[str, Any]:
    fields = row.model_dump(mode="json")
    return {**fields, "caveats": "; ".join(row.caveats)}


def _check_row(row: CheckRow) -> dict[str, Any]:
    """Returns a check under the names that claims have, its answers as texts."""
    return {
        "check": row.check,
        "claim": row.question,
        "source": row.source,
        "expected": row.expected,
        "answer": row.ours,
        "agrees": row.agrees,
    }


class _ByWidth:
    """A table that is made for the width that it is shown in."""

    def __init__(self, table: "Callable[[int], Table]") -> None:
        self.table = table

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        yield self.table(options.max_width)


def _claims_table(rows: Iterable[Agreement], notes: Mapping[str, int], *, width: int) -> "Table":
    """Returns a table whose first column has claim, source and notes, and the room that is left."""
    shown: list[dict[str, str | Text]] = []
    for row in rows:
        cells = _claim_cells(row, notes)
        figures = {name: cells[name] for name in cells if name not in (CLAIM, SOURCE, NOTES)}
        if width < ROOMY:
            figures = {name: _folded(cell, width) for name, cell in figures.items()}
        shown.append({CLAIM: _claim_text(row, cells[NOTES]), **figures, AGREES: row.agrees})
    return _table(shown, width=width)


def _claim_text(row: Agreement, notes: str) -> "Text":
    from rich.text import Text

    place = f" ({'; '.join(filter(None, (row.part, row.source)))})"
    numbers = f" {notes}" if notes else ""
    return Text(printable(row.claim)).append(printable(place), style="dim").append(numbers)


def _folded(figure: str, width: int) -> str:
    """Returns a figure with its interval below it, and an interval with `to` on two lines."""
    folded = figure.replace(" (", "\n(").replace(" to ", " to\n")
    return folded.replace(" points", "\npoints") if width < NARROW else folded


def _table(rows: Sequence[Mapping[str, "str | Text"]], *, width: int) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, show_edge=False, pad_edge=False)
    verdict = next((most for below, most in VERDICT_WIDTHS.items() if width < below), None)
    for name in rows[0]:
        table.add_column(
            Text(name), justify="left" if name in WORDS else "right", overflow="fold",
            max_width=verdict if name == AGREES else None,
        )  # fmt: skip
    for row in rows:
        table.add_row(
            *(Text(printable_lines(c)) if isinstance(c, str) else c for c in row.values())
        )
    return table
