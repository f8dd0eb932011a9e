"""The figures of the source documents, and ours next to them.

`published_figures` and `SETTINGS` are data; `paper_table` compares trials with them, for
`tune-speed compare --with-paper`, and replications look their figures up here.
"""

from tune_speed.core.lazy import lazy_names

_NAMES = {
    "matching": ("PaperRow", "paper_rows"),
    "published": (
        *("SETTINGS", "SOURCES", "PublishedFigure", "Setting"),
        *("paper_listing", "published_figures"),
    ),
    "side_by_side": ("PaperTable", "paper_table"),
}

__all__ = [name for names in _NAMES.values() for name in names]

__getattr__ = lazy_names(__name__, _NAMES)
