"""Results side by side, as a terminal table or rows of a listing, and as JSON."""

import json
from collections.abc import Callable
from itertools import groupby
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from tune_speed.core.text import printable
from tune_speed.reporting.leaderboard.text import plain
from tune_speed.reporting.trials.comparison import Comparison

ABSENT = "–"
LONGEST_NAME = 48
"""Characters for which a field's name has room before it is folded."""


def as_renderable(comparison: Comparison) -> Table:
    """Returns a table for a terminal, its sections below one another."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    names = [f"  {printable(line.name)}" for line in comparison.lines]
    table.add_column(overflow="fold", min_width=min(LONGEST_NAME, max(map(len, names), default=0)))
    for name in comparison.names:
        table.add_column(Text(name), overflow="fold")
    if len(comparison.names) > 1 and comparison.lines[0].section != "recipe":
        table.add_row(Text("recipe: no difference", style="italic"), end_section=True)
    for section, lines in groupby(comparison.lines, key=lambda line: line.section):
        table.add_row(Text(section, style="italic"))
        for line in lines:
            cells = (Text(text_of(value)) for value in line.values)
            table.add_row(Text(f"  {printable(line.name)}"), *cells)
        table.add_section()
    return table


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """Returns a comparison for JSON, figures unrounded: each field with a value for each run."""
    sections: dict[str, dict[str, list[Any]]] = {}
    for line in comparison.lines:
        sections.setdefault(line.section, {})[line.name] = list(line.values)
    runs = [
        {"name": name, "run_id": run_id}
        for name, run_id in zip(comparison.names, comparison.run_ids, strict=True)
    ]
    is_comparable = not comparison.why_not
    why_not = {name: list(values) for name, values in comparison.why_not.items()}
    return {"runs": runs, "is_comparable": is_comparable, "why_not": why_not, **sections}


def table_rows(comparison: Comparison, show: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """Returns a row for each field, with one column for each result, its values as `show` does."""
    names = [show(name) for name in comparison.names]
    return [
        {
            "section": line.section,
            "field": show(line.name),
            **dict(zip(names, map(show, line.values), strict=True)),
        }
        for line in comparison.lines
    ]


def text_of(value: Any) -> str:
    """Returns a value for people: four digits, `–` for none."""
    if value is None:
        return ABSENT
    if isinstance(value, float):
        return f"{value:.4g}"
    return printable(value if isinstance(value, str) else json.dumps(value, default=str))


def markdown_of(value: Any) -> str:
    """Returns a value as Markdown that shows it and does nothing with it."""
    return plain(text_of(value))


def raw_of(value: Any) -> Any:
    """Returns a value for CSV: numbers unrounded, nothing for none."""
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)
