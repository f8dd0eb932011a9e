"""`leaderboard --format html`: every board a table of its own, on one page."""

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata

from tune_speed.core.records import CLOCK_STATEMENT
from tune_speed.reporting.leaderboard.ranking import Board
from tune_speed.reporting.page.boards import board_table
from tune_speed.reporting.page.site import render


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
