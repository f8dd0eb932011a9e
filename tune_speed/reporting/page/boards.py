"""Leaderboards as tables of a page: the columns of the other forms, under plainer headings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tune_speed.reporting.leaderboard import text as report
from tune_speed.reporting.leaderboard.ranking import Board, Row

COLUMNS = {
    "estimate": {
        "rank": "Rank",
        "study/trial": "Trial",
        "expected_s (95 %)": "Time to target [s] (interval)",
        "final": "Final",
        "steps": "Steps",
        "images_per_s": "Images/s",
        "peak_memory_gib": "Memory [GiB]",
        "timing": "Clock",
        "search: trials, device": "Search: trials, device",
    },
    "certified": {
        "rank": "Rank",
        "study/trial": "Trial",
        "expected_s (95 %)": "Expected with restarts [s] (95 %)",
        "median (interval)": "Median [s] (interval)",
        "hits/n": "Met / seeds",
        "final": "Final",
        "faster than": "Faster than",
        "search: trials, device": "Search: trials, device",
    },
}
"""Names of the report's columns, with headings, by kind of board."""
OF_SEVERAL = "search: trials, device"
"""Tells studies apart; where there is one, every row has the same."""
LEFT = ("study/trial", "timing", "faster than")
"""Columns of words; the others are figures, which stand right."""


@dataclass(frozen=True, kw_only=True)
class BoardCell:
    """One cell of a board."""

    column: str
    text: str
    is_left: bool


@dataclass(frozen=True, kw_only=True)
class BoardRow:
    """One row of a board."""

    row: Row
    cells: tuple[BoardCell, ...]
    searched: str
    """What the search chose, in words."""


@dataclass(frozen=True, kw_only=True)
class BoardTable:
    """One board as a table."""

    board: Board
    title: str
    caption: str
    headings: tuple[tuple[str, bool], ...]
    """Texts, and whether their columns stand left."""
    rows: tuple[BoardRow, ...]
    links: Mapping[str, str]
    """Ids of elements on the same page by run id."""


def board_table(board: Board, *, links: Mapping[str, str]) -> BoardTable:
    """Returns `board` as a table whose rows link to what `links` names."""
    is_one_study = len({row.study for row in board.rows}) < 2
    columns = {
        name: heading
        for name, heading in COLUMNS[board.kind].items()
        if not (is_one_study and name == OF_SEVERAL)
    }
    return BoardTable(
        board=board,
        title=report.title(board),
        caption=report.caption(board),
        headings=tuple((heading, name in LEFT) for name, heading in columns.items()),
        rows=tuple(
            BoardRow(
                row=row,
                cells=_cells(row, list(columns)),
                searched=report.describe_params(row.params),
            )
            for row in board.rows
        ),
        links=links,
    )


def _cells(row: Row, columns: Sequence[str]) -> tuple[BoardCell, ...]:
    return tuple(
        BoardCell(column=name, text=report.COLUMNS[name](row), is_left=name in LEFT)
        for name in columns
    )
