"""Leaderboards as tables of a page, and a page of nothing else (`leaderboard --format html`)."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tune_speed.reporting.leaderboard.ranking import Board
from tune_speed.reporting.leaderboard.tables import PAGE, SEARCH, SHOWN, told
from tune_speed.reporting.leaderboard.text import caption, kind_text, title
from tune_speed.reporting.page.site import render


def board_table(
    board: Board, *, links: Mapping[str, str], has_studies: bool = False
) -> dict[str, Any]:
    """Returns `board` as the template reads it; `links` are addresses by run id.

    `has_studies`: linked trials are named with their study.
    """
    is_one_study = len({row.study for row in board.rows}) < 2
    names = [n for n in told(board, PAGE[board.kind]) if not (is_one_study and n == SEARCH)]
    return {
        "board": board,
        "name": kind_text(board).capitalize(),
        "title": title(board),
        "caption": caption(board),
        "columns": {name: SHOWN[name] for name in names},
        "links": links,
        "has_studies": has_studies,
    }


def in_order(boards: Iterable[Board]) -> list[Board]:
    # Certified rows are known better than estimates of the same workload and device.
    return sorted(
        boards, key=lambda b: (b.workload, b.workload_hash, b.protocol_version, b.device, b.kind)
    )


def boards_page(boards: Sequence[Board]) -> str:
    tables = [board_table(board, links={}) for board in in_order(boards)]
    read_at = datetime.now(UTC).isoformat(timespec="seconds")
    return render("boards.html.j2", {"tables": tables, "read_at": read_at})
