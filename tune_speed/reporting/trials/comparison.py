"""Results side by side: what differs between their recipes, their figures, where these are from."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from tune_speed.core.comparability import ComparisonKey, board_key
from tune_speed.core.config import flatten
from tune_speed.core.records import TrialRecord
from tune_speed.core.text import ABSENT, device_text, printable
from tune_speed.reporting.leaderboard.ranking import Row, make_boards
from tune_speed.reporting.table import Column, Section, Table, escape_markdown
from tune_speed.tracking.columns import BoardColumns, columns_of, values_of
from tune_speed.tracking.filter.fields import settings_of

SECTIONS = ("recipe", "workload", "result", "setting")
RANKING = ("rank", "tied", "times_the_fastest")
EXPECTED = ("expected_s", "expected_low_s", "expected_high_s")
NAMED = ("study", "trial_id")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One field of all results."""

    section: str
    """One of SECTIONS; `setting` is where, when and with what it ran."""
    name: str
    values: tuple[Any, ...]
    """One a result; None where it has none."""

    @property
    def differs(self) -> bool:
        """Whether the results have different values; an absent one is as good as null."""
        return any(value != self.values[0] for value in self.values)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Results side by side."""

    names: tuple[str, ...]
    """Of each result, as `tune-speed show` takes it."""
    run_ids: tuple[str, ...]
    why_not: dict[str, tuple[Any, ...]]
    """What they would have to share to be ranked and do not, with its values; empty if they may."""
    lines: tuple[Line, ...]

    @property
    def warning(self) -> str:
        """Why they are not ranked, in words; empty if they may be."""
        if not self.why_not:
            return ""
        differences = "; ".join(f"{k}: {' | '.join(map(str, v))}" for k, v in self.why_not.items())
        said = f"these results are not comparable and not ranked, as they differ in {differences}"
        return printable(device_text(said))


def compare_records(
    trials: Sequence[tuple[str, TrialRecord]], *, with_equal: bool = False
) -> Comparison:
    """Returns results side by side; `with_equal`: settings that are the same in all, too."""
    ids = [run_id for run_id, _ in trials]
    assert len(set(ids)) == len(ids) > 0, ids
    records = [record for _, record in trials]
    keys = [board_key(record) for record in records]
    shared = {name: tuple(getattr(key, name) for key in keys) for name in ComparisonKey._fields}
    why_not = {name: values for name, values in shared.items() if len(set(values)) > 1}
    boards = make_boards(trials, with_misses=True, by_configuration=False)
    rows = {row.run_id: row for board in boards for row in board.rows}
    results = _results([rows[run_id] for run_id in ids], records, is_ranked=not why_not)
    compared = [
        *_lines(
            "recipe",
            # `{}` says no more than that an entry was chosen, which its place says too.
            [{k: v for k, v in settings_of(r.recipe).items() if v != {}} for r in records],
        ),
        *_lines("workload", [flatten(record.workload) for record in records]),
        *_lines("setting", [_setting(record) for record in records]),
    ]
    shown = [line for line in compared if with_equal or line.differs]
    return Comparison(
        names=_names(trials),
        run_ids=tuple(ids),
        why_not=why_not,
        lines=tuple(sorted([*shown, *results], key=lambda line: SECTIONS.index(line.section))),
    )


def _results(rows: Sequence[Row], records: Sequence[TrialRecord], *, is_ranked: bool) -> list[Line]:
    fastest_s = min((row.expected_s for row in rows if row.rank and row.expected_s), default=None)
    tables = []
    for row, record in zip(rows, records, strict=True):
        values = values_of(record)
        is_timed = row.rank and row.expected_s and fastest_s
        figures = {
            "rank": row.rank,
            "tied": row.tied or None,
            "times_the_fastest": (row.expected_s or 0) / (fastest_s or 1) if is_timed else None,
            **{"kind": record.verdict, "device": str(record.device)},
            **{name: getattr(row, name) for name in EXPECTED},
            **{name: values[name] for name in columns_of(BoardColumns) if name not in NAMED},
            **{name: values[name] for name in ("step_time_ms", "stop_reason")},
        }
        tables.append(figures)
    hidden = () if is_ranked and len(rows) > 1 else RANKING
    # Of a single run the expected time is its time, which has a line already.
    hidden = hidden if any(row.n > 1 for row in rows) else (*hidden, *EXPECTED)
    lines = [line for line in _lines("result", tables) if line.name not in hidden]
    return [line for line in lines if any(value is not None for value in line.values)]


def _setting(record: TrialRecord) -> dict[str, Any]:
    return {
        "workload": record.workload_name,
        **{n: getattr(record, n) for n in ("workload_hash", "protocol_version", "evaluated_on")},
        "seeds": " ".join(str(run.seed) for run in record.runs),
        "cpu_threads": record.cpu_threads,
        "max_cotenants": record.max_cotenants,
        **{f"environment.{name}": value for name, value in record.environment.items()},
        "finished_at": record.finished_at,
    }


def _lines(section: str, tables: Sequence[Mapping[str, Any]]) -> list[Line]:
    names: Iterable[str] = dict.fromkeys(name for table in tables for name in table)
    return [
        Line(section=section, name=name, values=tuple(table.get(name) for table in tables))
        for name in names
    ]


def _names(trials: Sequence[tuple[str, TrialRecord]]) -> tuple[str, ...]:
    kinds = {"estimate": ""}
    names = [
        printable(f"{r.study}/{r.trial_id}{kinds.get(r.kind, f'@{r.kind}')}") for _, r in trials
    ]
    return tuple(
        name if names.count(name) == 1 else f"{name} ({run_id[:8]})"
        for name, (run_id, _) in zip(names, trials, strict=True)
    )


# Characters for which a field's name has room before it is folded.
LONGEST_NAME = 48
# Characters that each result's column has at least; with fewer, results are in tables of their own.
LEAST_COLUMN = 22


@dataclass(frozen=True)
class SideBySide:
    """A comparison for a terminal, in as many tables as its width makes necessary."""

    # rich would leave out what has no room, without a word.
    comparison: Comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = [f"  {printable(line.name)}" for line in self.comparison.lines]
        width = min(LONGEST_NAME, max(map(len, names), default=0))
        count = len(self.comparison.names)
        most = max(1, (options.max_width - width) // LEAST_COLUMN)
        size = math.ceil(count / math.ceil(count / most))
        for first in range(0, count, size):
            if first:
                yield Text()
            yield _table(self.comparison, slice(first, first + size), width)


def _table(comparison: Comparison, chosen: slice, width: int) -> Table:
    rows: list[Sequence[str] | Section] = []
    if len(comparison.names) > 1 and comparison.lines[0].section != "recipe":
        rows.append(Section("recipe: no difference"))
    for section, lines in groupby(comparison.lines, key=lambda line: line.section):
        rows.append(Section(section))
        rows += [(f"  {line.name}", *map(text_of, line.values[chosen])) for line in lines]
    names = [Column(name, is_left=True) for name in comparison.names[chosen]]
    return Table([Column("", is_left=True, min_width=width), *names], rows)


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
    return printable(
        device_text(value if isinstance(value, str) else json.dumps(value, default=str))
    )


def markdown_of(value: Any) -> str:
    return escape_markdown(text_of(value))


def raw_of(value: Any) -> Any:
    """Returns a value for CSV: numbers unrounded, nothing for none."""
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)
