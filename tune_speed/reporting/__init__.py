"""Results for eyes: leaderboards, trials, figures, pages and listings. It needs no torch.

`Table` prints rows to a terminal, as HTML, CSV or Markdown; `find_boards` ranks what a store holds;
`read_study` takes one frozen picture of a study, from which `study_page` and `draw_svg` are
made. Columns of results are defined in `tune_speed.tracking.columns`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tune_speed.reporting.figures import FIGURES, draw_png, draw_svg
    from tune_speed.reporting.leaderboard.history import record_history
    from tune_speed.reporting.leaderboard.queries import Choice, find_boards
    from tune_speed.reporting.leaderboard.ranking import Board, Row, make_boards
    from tune_speed.reporting.page.boards import boards_page
    from tune_speed.reporting.page.study_page import study_page
    from tune_speed.reporting.study.reader import read_study
    from tune_speed.reporting.study.view import StudyView
    from tune_speed.reporting.table import Column, Table
    from tune_speed.reporting.trials.comparison import compare_records

__all__ = [
    "FIGURES",
    "Board",
    "Choice",
    "Column",
    "Row",
    "StudyView",
    "Table",
    "boards_page",
    "compare_records",
    "draw_png",
    "draw_svg",
    "find_boards",
    "make_boards",
    "read_study",
    "record_history",
    "study_page",
]

# Lazily: each sub-room imports this one first.
_MODULES = {
    "figures": ("FIGURES", "draw_png", "draw_svg"),
    "leaderboard.history": ("record_history",),
    "leaderboard.queries": ("Choice", "find_boards"),
    "leaderboard.ranking": ("Board", "Row", "make_boards"),
    "page.boards": ("boards_page",),
    "page.study_page": ("study_page",),
    "study.reader": ("read_study",),
    "study.view": ("StudyView",),
    "table": ("Column", "Table"),
    "trials.comparison": ("compare_records",),
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used."""
    from importlib import import_module

    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
