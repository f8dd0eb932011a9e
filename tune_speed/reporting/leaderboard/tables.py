"""Leaderboards as tables for a terminal and a notebook, and as JSON, CSV and Markdown."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from tune_speed.core.text import printable
from tune_speed.reporting.display import html_line
from tune_speed.reporting.leaderboard.columns import FASTER, MARKDOWN, SHOWN, TERMINAL
from tune_speed.reporting.leaderboard.ranking import Board, BoardFacts, Row
from tune_speed.reporting.leaderboard.text import NO_TRIALS, caption, describe_params, title
from tune_speed.reporting.table import Column, Table, escape_markdown, fitting, named_lines

NONE_MET = "{}: none of {} trials met the target."


def as_renderable(boards: Sequence[Board]) -> RenderableType:
    """Returns the boards as tables for a terminal.

    Names are shown as they are: never as markup, nor do their control characters reach it.
    """
    if not boards:
        return Text(NO_TRIALS)
    parts: list[RenderableType] = []
    for board in boards:
        if not board.rows:
            parts.append(Text(printable(NONE_MET.format(title(board), board.trials))))
            continue
        below = Text(printable(caption(board)), style="dim")
        heading = Text(printable(title(board)), style="italic")
        parts += [heading, _Rows(board), Text(), below, Text()]
    return Group(*parts)


@dataclass(frozen=True)
class _Rows:
    """The rows of a board, in the widest layout that fits, and what each row chose below it."""

    # What was searched has lines of its own: as a column it would leave no room for the figures.

    board: Board

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        layouts = TERMINAL[self.board.kind]
        tables = [_table(self.board, names) for names in layouts]
        chosen = fitting(tables, console, options)
        yield tables[chosen]
        yield Text()
        # Where the column of rivals has no room, their names are in the lines below.
        with_rivals = FASTER not in layouts[chosen]
        ranks = _aligned([row.place for row in self.board.rows])
        lines = (_line(row, self.board, with_rivals=with_rivals) for row in self.board.rows)
        yield named_lines(zip(ranks, lines, strict=True))


def _table(board: Board, names: Sequence[str]) -> Table:
    has_misses = any(row.rank is None for row in board.rows)
    # Without misses all rows met the target: their status says nothing.
    shown = [SHOWN[name] for name in names if name != "status" or has_misses]
    columns = [Column(each.narrow, each.is_left or each.narrow == "rank") for each in shown]
    ranks = _aligned([row.place for row in board.rows])
    rows = [
        [rank if each.narrow == "rank" else each.text(row) for each in shown]
        for rank, row in zip(ranks, board.rows, strict=True)
    ]
    return Table(columns, rows)


def _aligned(ranks: Sequence[str]) -> list[str]:
    """Returns ranks with their digits below one another, flush left as wide as their heading."""
    return [f"{rank.removesuffix('='):>3}{'=' if rank.endswith('=') else ''}" for rank in ranks]


def _line(row: Row, board: Board, *, with_rivals: bool) -> str:
    studies = {row.study for row in board.rows}
    name = row.name if len(studies) > 1 else row.trial_id
    parts = [f"{name}: {describe_params(row.params)}"]
    if with_rivals and row.rival is not None:
        parts.append(f"rival {row.rival}")
    if (len(studies) > 1 or board.kind == "certified") and row.study_trials is not None:
        parts.append(f"found in {row.study_trials} trials, {row.study_device_s:.0f} device-seconds")
    return "; ".join(parts)


def boards_html(boards: Sequence[Board]) -> Markup:
    """Returns a table for each board, under its title and above its caption."""
    if not boards:
        return html_line(NO_TRIALS)
    parts = []
    for board in boards:
        if not board.rows:
            parts.append(html_line(NONE_MET.format(title(board), board.trials)))
            continue
        shown = [SHOWN[name] for name in (*TERMINAL[board.kind][0], "searched")]
        rows = [[each.text(row) for each in shown] for row in board.rows]
        table = Table((Column(each.narrow, each.is_left) for each in shown), rows)
        parts += [html_line(title(board), tag="h4"), table.html(), html_line(caption(board))]
    return Markup("").join(parts)


def as_json(boards: Sequence[BoardFacts]) -> str:
    """Returns boards, or the records of a history, as JSON, figures unrounded."""
    return json.dumps([board.model_dump(mode="json") for board in boards], indent=2)


def as_csv(boards: Sequence[Board]) -> str:
    """Returns one line a row, the board's fields first; the searched parameters are JSON."""
    names = [*(name for name in Board.model_fields if name != "rows"), *Row.model_fields]
    rows = (
        {**board.model_dump(mode="json"), **row.model_dump(mode="json")}
        for board in boards
        for row in board.rows
    )
    return csv_of(names, rows)


def csv_of(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns one line a row, of these fields of it; the searched parameters are JSON."""
    texts = ({**row, "params": json.dumps(row["params"], sort_keys=True)} for row in rows)
    return Table(map(Column, names), ([row[name] for name in names] for row in texts)).csv()


def as_markdown(boards: Sequence[Board]) -> str:
    """Returns a GitHub table for each board."""
    lines = []
    for board in boards:
        columns = {name: [SHOWN[name].text(row) for row in board.rows] for name in MARKDOWN}
        lines += [f"**{escape_markdown(title(board))}**", "", Table.of_columns(columns).markdown()]
        lines += ["", escape_markdown(caption(board)), ""]
    return "\n".join(lines)
