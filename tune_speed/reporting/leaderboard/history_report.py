"""The record over time as a terminal table, JSON, CSV or Markdown."""

import json
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tune_speed.core.moments import moment_s
from tune_speed.core.targets import SIGNS
from tune_speed.core.text import printable
from tune_speed.reporting.leaderboard.history import RecordHeld, boards_of
from tune_speed.reporting.leaderboard.tables import plain_table
from tune_speed.reporting.leaderboard.text import (
    KINDS,
    NO_TRIALS,
    describe_params,
    interval_text,
    plain,
    rows_as_csv,
    rows_as_markdown,
)

CAPTION = (
    "The fastest so far, by the expected time with restarts; equal times set no record."
    " ? after a factor: the intervals overlap, so the gain may be luck."
)
LEFT = ("held from (UTC)", "study/trial", "searched")


def history_renderable(history: Sequence[RecordHeld]) -> RenderableType:
    """Returns the records of each board as a table for a terminal, the latest last."""
    if not history:
        return Text(NO_TRIALS)
    parts = [part for board in boards_of(history) for part in _board(board)]
    return Group(*parts, Text(CAPTION, style="dim"))


def history_json(history: Sequence[RecordHeld]) -> str:
    """Returns the records as JSON, figures unrounded."""
    return json.dumps([held.model_dump(mode="json") for held in history], indent=2)


def history_csv(history: Sequence[RecordHeld]) -> str:
    """Returns one line a record under the names of its fields; the parameters are JSON."""
    rows = [held.model_dump(mode="json") for held in history]
    named = [{**row, "params": json.dumps(row["params"], sort_keys=True)} for row in rows]
    header = ",".join(RecordHeld.model_fields)
    return rows_as_csv(named) if named else f"{header}\n"


def history_markdown(history: Sequence[RecordHeld]) -> str:
    """Returns a GitHub table for each board."""
    parts = []
    for board in boards_of(history):
        rows = [{name: plain(cell) for name, cell in _cells(held).items()} for held in board]
        parts += [f"**{plain(_title(board[0]))}**", "", rows_as_markdown(rows), ""]
    return "\n".join([*parts, CAPTION if parts else NO_TRIALS, ""])


def _board(board: Sequence[RecordHeld]) -> list[RenderableType]:
    rows = [_cells(held) for held in board]
    shown = [name for name in rows[0] if name not in ("gained [s]", "searched")]
    table = plain_table({name: [row[name] for row in rows] for name in shown}, left=LEFT)
    heading = Text(printable(_title(board[0])), style="italic")
    return [heading, table, Text(), _searched(board), Text()]


def _searched(board: Sequence[RecordHeld]) -> Table:
    lines = Table.grid()
    lines.add_column(overflow="fold")
    for held in board:
        name = f"{held.study}/{held.trial_id}"
        lines.add_row(Text(printable(f"{name}: {describe_params(held.params)}")))
    return lines


def _title(held: RecordHeld) -> str:
    target = f"{held.metric} {SIGNS[held.target_mode]} {held.target:g}, {held.mode}"
    return f"{held.workload}, {KINDS[held.kind]}, the record over time: {target}, on {held.device}"


def _cells(held: RecordHeld) -> dict[str, str]:
    return {
        "held from (UTC)": held.held_from[:16].replace("T", " "),
        "for": _span(held),
        "time [s]": interval_text(held.expected_s, held.expected_low_s, held.expected_high_s),
        "gained [s]": "–" if held.gained_s is None else f"{held.gained_s:.2f}",
        "faster by": _factor(held),
        "study/trial": f"{held.study}/{held.trial_id}",
        "searched": describe_params(held.params),
    }


def _factor(held: RecordHeld) -> str:
    return "–" if held.speedup is None else f"{held.speedup:.2f}×{'' if held.is_clear else '?'}"


def _span(held: RecordHeld) -> str:
    """Returns how long the record was held: `45 s`, `2 h 5 min`, `3 d 4 h`."""
    if held.held_until is None:
        return "to date"
    seconds = round(moment_s(held.held_until) - moment_s(held.held_from))
    sizes = {"d": 86400, "h": 3600, "min": 60, "s": 1}
    parts = [(name, seconds // size) for name, size in sizes.items() if seconds >= size]
    if not parts:
        return "0 s"
    name, count = parts[0]
    smaller = {"d": "h", "h": "min"}.get(name)
    rest = (seconds - count * sizes[name]) // sizes[smaller] if smaller else 0
    return f"{count} {name} {rest} {smaller}" if rest else f"{count} {name}"
