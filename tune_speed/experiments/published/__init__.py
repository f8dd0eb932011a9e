"""The figures of the source documents, and ours next to them.

`published_figures` and `SETTINGS` are data; `paper_table` compares trials with them, for
`tune-speed compare --with-paper`, and replications look their figures up here.
"""

from tune_speed.experiments.published.matching import PaperRow, paper_rows
from tune_speed.experiments.published.published import (
    SOURCES,
    PublishedFigure,
    paper_listing,
    published_figures,
)
from tune_speed.experiments.published.settings import SETTINGS, Setting
from tune_speed.experiments.published.side_by_side import PaperTable, paper_table

__all__ = [
    "SETTINGS",
    "SOURCES",
    "PaperRow",
    "PaperTable",
    "PublishedFigure",
    "Setting",
    "paper_listing",
    "paper_rows",
    "paper_table",
    "published_figures",
]
