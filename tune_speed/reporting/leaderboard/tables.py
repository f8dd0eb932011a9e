"""Leaderboards as tables for a terminal, with the columns that its width has room for."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from tune_speed.core.text import printable
from tune_speed.reporting.display import html_line
from tune_speed.reporting.leaderboard.ranking import Board, Row
from tune_speed.reporting.leaderboard.text import (
    COLUMNS,
    NO_TRIALS,
    caption,
    describe_params,
    faster_text,
    title,
)
from tune_speed.reporting.table import Table, fitting, named_lines

FASTER, FACTOR = "faster than", "factor, p"
"""The second is the first without the rival's name, which then stands below the table."""
TIME, EXPECTED = "time (interval)", "expected_s (95 %)"
"""The same figures; of a single run, the expected time is its time."""
CELLS = {**COLUMNS, TIME: COLUMNS[EXPECTED], FACTOR: faster_text}
HEADINGS = {
    TIME: "time to target [s]",
    EXPECTED: "expected [s]",
    "median (interval)": "median [s]",
    "images_per_s": "images/s",
    "peak_memory_gib": "GiB",
    "hits/n": "hits",
    FACTOR: "vs rival",
}
"""Of columns that stand under another name than in the other forms."""
ESTIMATE = ("rank", TIME, "final", "status", "steps", "images_per_s")
CERTIFIED = ("rank", EXPECTED, "median (interval)", "hits/n", "final", "status")
NAME = "study/trial"
LAYOUTS = {
    "estimate": (
        (*ESTIMATE, "peak_memory_gib", "timing", NAME),
        (*ESTIMATE, "timing", NAME),
        (*ESTIMATE, NAME),
        (*ESTIMATE[:-1], NAME),
        (*ESTIMATE[:-2], NAME),
    ),
    "certified": (
        (*CERTIFIED, FASTER, NAME),
        (*CERTIFIED, FACTOR, NAME),
        ("rank", EXPECTED, "hits/n", "final", "status", FACTOR, NAME),
        ("rank", EXPECTED, "hits/n", "status", FACTOR, NAME),
        ("rank", EXPECTED, "hits/n", NAME),
    ),
}
"""Columns of each kind of board, the widest set first; the other forms have all."""


def as_renderable(boards: Sequence[Board]) -> RenderableType:
    """Returns the boards as tables for a terminal.

    Names are shown as they are: never as markup, nor do their control characters reach it.
    """
    if not boards:
        return Text(NO_TRIALS)
    return Group(*(_board(board) for board in boards))


@dataclass(frozen=True)
class _Rows:
    """The rows of a board, in the widest layout that fits, and what each row chose below it.

    What was searched would leave no room for the figures beside them.
    """

    board: Board

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        layouts = LAYOUTS[self.board.kind]
        tables = [
            Table.of_columns(_columns(self.board, names), left=("rank", NAME)) for names in layouts
        ]
        chosen = fitting(tables, console, options)
        yield tables[chosen]
        yield Text()
        yield _searched(self.board, with_rivals=FASTER not in layouts[chosen])


def _board(board: Board) -> RenderableType:
    if not board.rows:
        return Text(printable(f"{title(board)}: none of {board.trials} trials met the target."))
    heading = Text(printable(title(board)), style="italic")
    return Group(
        heading, _Rows(board), Text(), Text(printable(caption(board)), style="dim"), Text()
    )


def _columns(board: Board, names: Sequence[str]) -> dict[str, list[str]]:
    has_misses = any(row.rank is None for row in board.rows)
    shown = [name for name in names if name != "status" or has_misses]
    columns = {HEADINGS.get(name, name): [CELLS[name](row) for row in board.rows] for name in shown}
    return {**columns, "rank": _aligned(columns["rank"])}


def _aligned(ranks: Sequence[str]) -> list[str]:
    """Returns ranks with their digits below one another, flush left as wide as their heading."""
    return [f"{rank.removesuffix('='):>3}{'=' if rank.endswith('=') else ''}" for rank in ranks]


def _searched(board: Board, *, with_rivals: bool) -> RenderableType:
    """Returns a line on each row: what it chose, and what it took to find where boards mix that."""
    ranks = _aligned([row.place for row in board.rows])
    lines = (_line(row, board, with_rivals=with_rivals) for row in board.rows)
    return named_lines(zip(ranks, lines, strict=True))


def _line(row: Row, board: Board, *, with_rivals: bool) -> str:
    studies = {row.study for row in board.rows}
    name = f"{row.study}/{row.trial_id}" if len(studies) > 1 else row.trial_id
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
    return Markup("").join(_board_html(board) for board in boards)


def _board_html(board: Board) -> Markup:
    if not board.rows:
        return html_line(f"{title(board)}: none of {board.trials} trials met the target.")
    columns = {
        HEADINGS.get(name, name): [CELLS[name](row) for row in board.rows]
        for name in LAYOUTS[board.kind][0]
    }
    columns["searched"] = [describe_params(row.params) for row in board.rows]
    table = Table.of_columns(columns, left=(NAME, "searched")).html()
    return html_line(title(board), tag="h4") + table + html_line(caption(board))
