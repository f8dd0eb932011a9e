"""Leaderboards as HTML for a notebook."""

from collections.abc import Sequence

from markupsafe import Markup

from tune_speed.reporting.display import html_line, html_table
from tune_speed.reporting.leaderboard.ranking import Board
from tune_speed.reporting.leaderboard.tables import CELLS, HEADINGS, LAYOUTS, NAME
from tune_speed.reporting.leaderboard.text import NO_TRIALS, caption, describe_params, title


def boards_html(boards: Sequence[Board]) -> Markup:
    """Returns a table for each board, under its title and above its caption."""
    if not boards:
        return html_line(NO_TRIALS)
    return Markup("").join(_board(board) for board in boards)


def _board(board: Board) -> Markup:
    if not board.rows:
        return html_line(f"{title(board)}: none of {board.trials} trials met the target.")
    columns = {
        HEADINGS.get(name, name): [CELLS[name](row) for row in board.rows]
        for name in LAYOUTS[board.kind][0]
    }
    columns["searched"] = [describe_params(row.params) for row in board.rows]
    table = html_table(columns, left=(NAME, "searched"))
    return html_line(title(board), tag="h4") + table + html_line(caption(board))
