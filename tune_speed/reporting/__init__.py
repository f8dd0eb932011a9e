"""Results for eyes: leaderboards, trials, figures, pages and listings. It needs no torch."""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "figures": ("FIGURES", "draw_png", "draw_svg"),
    "leaderboard.history": ("record_history",),
    "leaderboard.queries": ("find_boards",),
    "leaderboard.ranking": ("Board", "Row", "make_boards"),
    "page.site": ("boards_page", "study_page"),
    "study.reader": ("read_study",),
    "study.view": ("StudyView",),
    "table": ("Column", "Table"),
    "trials.comparison": ("compare_records",),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
