"""What a replication found as tables for a terminal, and as rows for CSV and Markdown."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tune_speed.core.text import ABSENT, INFINITE, counted, fixed, printable, significant
from tune_speed.experiments.replication.agreement import Agreement
from tune_speed.experiments.replication.replicate import Outcome
from tune_speed.reporting.table import Column, Table, escape_markdown

AGREES = "agrees?"
# Columns of words, which are folded; and characters of a verdict before it is.
WORDS = ("claim", "question", "expected", "ours", AGREES)
VERDICT_WIDTH = len("not applicable")


def as_renderables(outcome: Outcome) -> tuple[RenderableType, ...]:
    heading = Text(printable(title(outcome)), style="italic")
    about = Text(printable(circumstances(outcome)), style="dim")
    below = [Text(printable(line), style="dim") for line in _below(outcome)]
    return (Group(heading, about), *_tables(outcome), Group(*below))


def markdown(outcome: Outcome) -> str:
    heading = f"**{escape_markdown(title(outcome))}**\n\n{escape_markdown(circumstances(outcome))}"
    below = "\n".join(f"- {escape_markdown(line)}" for line in _below(outcome))
    tables = [table.markdown() for table in _tables(outcome)]
    return "\n\n".join(filter(None, [heading, *tables, below])) + "\n"


def csv_rows(outcome: Outcome) -> list[dict[str, Any]]:
    claims = [
        {**row.model_dump(mode="json"), "caveats": "; ".join(row.caveats)} for row in outcome.rows
    ]
    names = {"question": "claim", "ours": "answer"}
    checks = [{names.get(k, k): v for k, v in row.model_dump().items()} for row in outcome.checks]
    about = {
        "replication": outcome.name,
        "items": " ".join(map(str, outcome.items)),
        "profile": outcome.profile,
        "device": "; ".join(outcome.devices),
    }
    fields = list(dict.fromkeys(name for row in [*claims, *checks] for name in row))
    return [{**about, **{name: row.get(name) for name in fields}} for row in [*claims, *checks]]


def title(outcome: Outcome) -> str:
    items = ", ".join(map(str, outcome.items))
    numbers = f" ({'item' if len(outcome.items) == 1 else 'items'} {items})" if items else ""
    return f"{outcome.name}{numbers}: {outcome.title} {outcome.question}"


def circumstances(outcome: Outcome) -> str:
    sentences = [f"Profile {outcome.profile}: {outcome.about}".removesuffix(".") + "."]
    if outcome.overrides:
        sentences.append(f"Changed with --set {', '.join(outcome.overrides)}.")
    if outcome.planned_runs:
        seeds = " or ".join(map(str, outcome.seeds))
        where = f" on {', '.join(outcome.devices)}" if outcome.devices else ""
        runs = f"{outcome.done_runs} of {counted(outcome.planned_runs, 'run')}{where}"
        sentences.append(f"{runs}, {seeds} {'run' if seeds == '1' else 'runs'} an arm.")
    return " ".join(sentences)


def _caveats(rows: Sequence[Agreement]) -> list[str]:
    return list(dict.fromkeys(caveat for row in rows for caveat in row.caveats))


def _below(outcome: Outcome) -> list[str]:
    numbered = [
        f"[{number}] {text[:1].upper()}{text[1:]}".removesuffix(".") + "."
        for number, text in enumerate(_caveats(outcome.rows), start=1)
    ]
    return [*numbered, *outcome.caveats]


def _tables(outcome: Outcome) -> list[Table]:
    notes = _caveats(outcome.rows)
    claims = [_claim_cells(row, notes) for row in outcome.rows]
    answers = [
        {"question": row.question, "expected": row.expected, "ours": row.ours, AGREES: row.agrees}
        for row in outcome.checks
    ]
    return [
        Table(map(_column, rows[0]), [tuple(row.values()) for row in rows])
        for rows in filter(None, (claims, answers))
    ]


def _column(name: str) -> Column:
    is_of_words = name in WORDS
    width = VERDICT_WIDTH if name == AGREES else None
    return Column(name, is_left=is_of_words, max_width=width, no_wrap=not is_of_words)


def _claim_cells(row: Agreement, notes: Sequence[str]) -> dict[str, str]:
    place = "; ".join(filter(None, (row.part, row.source)))
    numbers = "".join(f" [{notes.index(caveat) + 1}]" for caveat in row.caveats)
    return {
        "claim": f"{row.claim} ({place}){numbers}",
        "paper": "no figure" if row.paper is None else with_unit(row.paper, row.unit),
        "ours (95 %)": ours_text(row),
        "n": str(row.n) if row.n else ABSENT,
        "ratio": fixed(row.ratio, 2),
        AGREES: row.agrees,
    }


def ours_text(row: Agreement) -> str:
    if row.ours is None and not row.is_infinite:
        return ABSENT
    value = INFINITE if row.ours is None else with_unit(row.ours, row.unit)
    if row.low is None:
        return value
    between = " to " if row.low < 0 else "–"
    high = INFINITE if row.high is None else with_unit(row.high)
    return f"{value}\n({with_unit(row.low)}{between}{high})"


def with_unit(value: float, unit: str = "") -> str:
    # Differences below the ninth place are those of sums in another order.
    digits = significant(round(value, 9), 4 if abs(value) >= 10 else 3)
    return f"{digits}{'' if unit == '×' else ' '}{unit}".rstrip()
