"""Leaderboards as a terminal table, JSON, CSV or Markdown."""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tune_speed.leaderboard import Board, Row

Cell = Callable[[Row], str]


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def describe_params(params: Mapping[str, Any]) -> str:
    """Returns `optimizer=sgd lr=0.123 …`: last parts of names where unique, four digits."""
    last_parts = Counter(name.rpartition(".")[2] for name in params)

    def short(name: str) -> str:
        last = name.rpartition(".")[2]
        return last if last_parts[last] == 1 else name

    parts = (
        f"{short(name)}={value:.4g}" if isinstance(value, float) else f"{short(name)}={value}"
        for name, value in params.items()
    )
    return " ".join(parts) or "(nothing searched)"


def _time(value_s: float | None) -> str:
    return "∞" if value_s is None else f"{value_s:.2f}"


def _expected(row: Row) -> str:
    interval = f"{_time(row.expected_low_s)}–{_time(row.expected_high_s)}"
    return f"{_time(row.expected_s)} ({interval})" if row.n > 1 else _time(row.expected_s)


def _median(row: Row) -> str:
    interval = f"{_time(row.median_low_s)}–{_time(row.median_high_s)}"
    return f"{_time(row.time_to_target_s)} ({interval})" if row.n > 1 else _time(row.expected_s)


def _faster(row: Row) -> str:
    if row.rival is None or row.p_value is None:
        return "–"
    factor = "–" if row.speedup is None else f"{row.speedup:.2f}×"
    return f"{factor}, p = {row.p_value:.2g}, {row.rival}"


COLUMNS: dict[str, Cell] = {
    "rank": lambda row: "–" if row.rank is None else str(row.rank),
    "time_to_target_s": lambda row: _number(row.time_to_target_s, 2),
    "median (interval)": _median,
    "expected_s (95 %)": _expected,
    "hits/n": lambda row: f"{row.hits}/{row.n}",
    "final": lambda row: _number(row.final_metric, 4),
    "steps": lambda row: str(row.steps),
    "images_per_s": lambda row: _number(row.images_per_s, 0),
    "peak_memory_gib": lambda row: _number(row.peak_memory_gib, 2),
    "timing": lambda row: row.timing,
    "faster than": _faster,
    "study/trial": lambda row: f"{row.study}/{row.trial_id}",
    "searched": lambda row: describe_params(row.params),
}
"""Leaderboard columns in order, by the names of the records' fields."""

TERMINAL_COLUMNS = {
    "estimate": (
        *("rank", "time_to_target_s", "hits/n", "final", "steps", "images_per_s"),
        *("timing", "study/trial"),
    ),
    "certified": (
        *("rank", "expected_s (95 %)", "median (interval)", "hits/n", "final"),
        *("faster than", "study/trial"),
    ),
}
"""Columns that fit beside one another on a terminal; the other forms have them all."""


def title(board: Board) -> str:
    """Returns what the rows of a board have in common."""
    target = f"{board.metric} ≥ {board.target:g}"
    kind = {"estimate": "estimates", "certified": "certified"}[board.kind]
    return f"{board.workload}, {kind}: {target}, {board.mode}, on {board.device}"


def caption(board: Board) -> str:
    """Returns how far the figures can be trusted, and what they cost."""
    trust = {
        "estimate": f"Estimates from a search: one seed a row; {_clocks(board)}",
        "certified": "Certified: fresh seeds, test part, alone on the device; expected_s is the"
        " expected time with restarts",
    }[board.kind]
    ranked = sum(row.rank is not None for row in board.rows)
    cost = f"{board.trials} trials, {board.tuning_cost_s:.0f} s of training in all"
    return f"{trust}. {ranked} shown of {cost}; protocol {board.protocol_version}."


def _clocks(board: Board) -> str:
    """Returns what the times are made of, in words."""
    timings = {timing for row in board.rows for timing in row.timing.split(", ")}
    words = {
        "isolated": "steps × isolated step time",
        "exclusive": "seconds alone on the device",
        "shared": "seconds on a SHARED device, slowed by others",
    }
    return ", ".join(words[name] for name in words if name in timings) or "none met the target"


def as_renderable(boards: Sequence[Board]) -> RenderableType:
    """Returns the boards as tables for a terminal; names are shown as they are, never as markup."""
    if not boards:
        return Text("No trial met its target yet.")
    return Group(*(_table(board) for board in boards))


def _table(board: Board) -> RenderableType:
    if not board.rows:
        text = f"{title(board)}: none of {board.trials} trials met the target."
        return Text(text)
    table = Table(title=escape(title(board)), title_justify="left", box=box.SIMPLE_HEAD)
    columns = TERMINAL_COLUMNS[board.kind]
    for name in columns:
        table.add_column(name, justify="left" if "/trial" in name else "right", overflow="fold")
    for row in board.rows:
        table.add_row(*(escape(COLUMNS[name](row)) for name in columns))
    return Group(table, _searched(board), Text(), Text(caption(board), style="dim"))


def _searched(board: Board) -> Table:
    """Yields what each row chose; beside the figures it would leave no room for them."""
    lines = Table.grid(padding=(0, 2))
    lines.add_column(justify="right", min_width=5)
    lines.add_column(overflow="fold")
    for row in board.rows:
        lines.add_row(COLUMNS["rank"](row), escape(COLUMNS["searched"](row)))
    return lines


def as_json(boards: Sequence[Board]) -> str:
    """Returns the boards as JSON, figures unrounded."""
    return json.dumps([board.model_dump(mode="json") for board in boards], indent=2)


def as_csv(boards: Sequence[Board]) -> str:
    """Returns one line a row, the board's fields first and the searched parameters as JSON last."""
    board_fields = [name for name in Board.model_fields if name != "rows"]
    row_fields = list(Row.model_fields)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*board_fields, *row_fields])
    for board in boards:
        common = board.model_dump(mode="json", include=set(board_fields))
        for row in board.rows:
            fields = row.model_dump(mode="json")
            fields["params"] = json.dumps(fields["params"], sort_keys=True)
            writer.writerow([*(common[f] for f in board_fields), *(fields[f] for f in row_fields)])
    return out.getvalue()


def as_markdown(boards: Sequence[Board]) -> str:
    """Returns a GitHub table for each board."""
    return "\n".join(_markdown(board) for board in boards)


def _markdown(board: Board) -> str:
    header = f"| {' | '.join(COLUMNS)} |"
    rule = f"|{'---|' * len(COLUMNS)}"
    rows = (" | ".join(_plain(cell(row)) for cell in COLUMNS.values()) for row in board.rows)
    lines = [f"**{_plain(title(board))}**", "", header, rule, *(f"| {row} |" for row in rows)]
    return "\n".join([*lines, "", _plain(caption(board)), ""])


def rows_as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a GitHub table with the first row's names as header; cells may have Markdown."""
    header = list(rows[0]) if rows else []
    lines = [header, ["---"] * len(header), *([_cell(value) for value in r.values()] for r in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rows_as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns one line a row after a line of the first row's names."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([list(rows[0]) if rows else [], *(row.values() for row in rows)])
    return out.getvalue()


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _plain(text: str) -> str:
    """Returns `text` so that Markdown and the HTML in it show it and do nothing with it."""
    for character in "\\`*_{}[]<>|":
        text = text.replace(character, f"\\{character}")
    return text.replace("\n", " ")
