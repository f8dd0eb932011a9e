"""Leaderboards as tables of a page, and a page of nothing else (`leaderboard --format html`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata

from tune_speed.core.records import CLOCK_STATEMENT
from tune_speed.reporting.leaderboard.columns import PAGE, SEARCH, SHOWN, Shown
from tune_speed.reporting.leaderboard.ranking import Board
from tune_speed.reporting.leaderboard.text import caption, title
from tune_speed.reporting.page.site import render


@dataclass(frozen=True, kw_only=True)
class BoardTable:
    """One board as a table."""

    board: Board
    title: str
    caption: str
    columns: Mapping[str, Shown]
    links: Mapping[str, str]
    """Ids of elements on the same page by run id."""


def board_table(board: Board, *, links: Mapping[str, str]) -> BoardTable:
    """Returns `board` as a table whose rows link to what `links` names."""
    is_one_study = len({row.study for row in board.rows}) < 2
    names = [name for name in PAGE[board.kind] if not (is_one_study and name == SEARCH)]
    return BoardTable(
        board=board,
        title=title(board),
        caption=caption(board),
        columns={name: SHOWN[name] for name in names},
        links=links,
    )


def boards_page(boards: Sequence[Board]) -> str:
    """Returns leaderboards as one HTML page that needs no network."""
    # Certified rows are known better than estimates of the same workload and device.
    ordered = sorted(
        boards, key=lambda b: (b.workload, b.workload_hash, b.protocol_version, b.device, b.kind)
    )
    return render(
        "boards.html.j2",
        {
            "tables": [board_table(board, links={}) for board in ordered],
            "read_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "version": metadata.version("tune_speed"),
            "clock": CLOCK_STATEMENT,
        },
    )
