"""What a replication found as tables for a terminal, and as rows for CSV and Markdown."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from tune_speed.core.text import ABSENT, INFINITE, counted, fixed, printable
from tune_speed.experiments.replication.agreement import Agreement, CheckRow, Outcome
from tune_speed.reporting.table import Column, Table, escape_markdown

# Differences below this are those of sums in another order.
ROUNDING = 1e-9
NO_FIGURE = "no figure"
CLAIM, SOURCE, NOTES, AGREES = "claim", "source", "notes", "agrees?"
WORDS = (CLAIM, "question", "expected", "ours", AGREES)
# From so many characters on, our interval is next to our figure, else below it.
ROOMY = 130
# With fewer, verdicts have one word a line, and points are below their number.
NARROW = 100
# Characters of a verdict before it is folded, where there are fewer than so many in all.
VERDICT_WIDTHS = {NARROW: len("applicable"), ROOMY: len("not applicable")}


def as_renderables(outcome: Outcome) -> tuple[RenderableType, ...]:
    notes = _numbered(outcome.rows)
    tables: list[RenderableType] = []
    if outcome.rows:
        tables.append(_ByWidth(lambda width: _claims_table(outcome.rows, notes, width)))
    if outcome.checks:
        checks = [_check_cells(row) for row in outcome.checks]
        tables.append(_ByWidth(lambda width: _table(checks, width)))
    heading = Text(printable(title(outcome)), style="italic")
    about = Text(printable(circumstances(outcome)), style="dim")
    below = [Text(printable(line), style="dim") for line in _below(outcome, notes)]
    shown = [Group(Text(), table) for table in tables]
    return (Group(heading, about), *shown, Group(Text(), *below, Text()))


def markdown(outcome: Outcome) -> str:
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
        lines += [Table.of_rows(rows).markdown(), ""]
    below = [f"- {escape_markdown(line)}" for line in _below(outcome, notes)]
    return "\n".join([*lines, *below, *([""] if below else [])])


def csv_rows(outcome: Outcome) -> list[dict[str, Any]]:
    claims = [
        {**row.model_dump(mode="json"), "caveats": "; ".join(row.caveats)} for row in outcome.rows
    ]
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
    items = ", ".join(map(str, outcome.items))
    numbers = f" ({'item' if len(outcome.items) == 1 else 'items'} {items})" if items else ""
    return f"{outcome.name}{numbers}: {outcome.title} {outcome.question}"


def circumstances(outcome: Outcome) -> str:
    about = f": {outcome.about}" if outcome.about else ""
    sentences = [f"Profile {outcome.profile}{about}".removesuffix(".") + "."]
    if outcome.overrides:
        sentences.append(f"Changed with --set {', '.join(outcome.overrides)}.")
    if outcome.planned_runs:
        seeds = " or ".join(map(str, outcome.seeds))
        where = f" on {', '.join(outcome.devices)}" if outcome.devices else ""
        runs = f"{outcome.done_runs} of {counted(outcome.planned_runs, 'run')}{where}"
        sentences.append(f"{runs}, {seeds} {'run' if seeds == '1' else 'runs'} an arm.")
    return " ".join(sentences)


def _numbered(rows: Sequence[Agreement]) -> dict[str, int]:
    caveats = dict.fromkeys(caveat for row in rows for caveat in row.caveats)
    return {caveat: number for number, caveat in enumerate(caveats, start=1)}


def _below(outcome: Outcome, notes: Mapping[str, int]) -> list[str]:
    numbered = [
        f"[{number}] {text[:1].upper()}{text[1:]}".removesuffix(".") + "."
        for text, number in notes.items()
    ]
    return [*numbered, *outcome.caveats]


def _claim_cells(row: Agreement, notes: Mapping[str, int]) -> dict[str, str]:
    part = f" ({row.part})" if row.part else ""
    return {
        CLAIM: row.claim + part,
        SOURCE: row.source,
        "paper": NO_FIGURE if row.paper is None else with_unit(row.paper, row.unit),
        "ours (95 %)": ours_text(row),
        "n": str(row.n) if row.n else ABSENT,
        "ratio": fixed(row.ratio, 2),
        AGREES: row.agrees,
        NOTES: " ".join(f"[{notes[caveat]}]" for caveat in row.caveats),
    }


def ours_text(row: Agreement) -> str:
    if row.ours is None and not row.is_infinite:
        return ABSENT
    value = INFINITE if row.ours is None else with_unit(row.ours, row.unit)
    if row.low is None:
        return value
    high = INFINITE if row.high is None else _digits(row.high)
    between = " to " if row.low < 0 else "–"
    return f"{value} ({_digits(row.low)}{between}{high})"


def with_unit(value: float, unit: str) -> str:
    return f"{_digits(value)}{'' if unit == '×' else ' '}{unit}"


def _digits(value: float) -> str:
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


def _check_row(row: CheckRow) -> dict[str, Any]:
    return {
        "check": row.check,
        "claim": row.question,
        "source": row.source,
        "expected": row.expected,
        "answer": row.ours,
        "agrees": row.agrees,
    }


class _ByWidth(NamedTuple):
    """A table that is made for the width that it is shown in."""

    table: Callable[[int], Table]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table(options.max_width)


def _claims_table(rows: Sequence[Agreement], notes: Mapping[str, int], width: int) -> Table:
    shown: list[dict[str, str | Text]] = []
    for row in rows:
        cells = _claim_cells(row, notes)
        numbers = f" {cells[NOTES]}" if cells[NOTES] else ""
        figures = {name: cells[name] for name in cells if name not in (CLAIM, SOURCE, NOTES)}
        if width < ROOMY:
            folds = {" (": "\n(", " to ": " to\n"}
            folds |= {" points": "\npoints"} if width < NARROW else {}
            for space, line in folds.items():
                figures = {name: cell.replace(space, line) for name, cell in figures.items()}
        place = f" ({'; '.join(filter(None, (row.part, row.source)))})"
        claim = Text(printable(row.claim)).append(printable(place), style="dim").append(numbers)
        shown.append({CLAIM: claim, **figures, AGREES: row.agrees})
    return _table(shown, width)


def _table(rows: Sequence[Mapping[str, str | Text]], width: int) -> Table:
    verdict = next((most for below, most in VERDICT_WIDTHS.items() if width < below), None)
    columns = [
        Column(name, is_left=name in WORDS, max_width=verdict if name == AGREES else None)
        for name in rows[0]
    ]
    return Table(columns, [tuple(row.values()) for row in rows])
