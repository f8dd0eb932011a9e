"""Figures of a study's part, drawn once each: inline SVG for a page, PNG for a slide.

A new figure is one file with a FigureKind and one line in FIGURES. Importing this package does not
import matplotlib, which takes a second.
"""

from collections.abc import Mapping
from pathlib import Path

from tune_speed.reporting.figures.best_so_far import BEST_SO_FAR
from tune_speed.reporting.figures.canvas import FigureKind
from tune_speed.reporting.figures.certified_times import CERTIFIED_TIMES
from tune_speed.reporting.figures.curves import CURVES
from tune_speed.reporting.figures.drawing import Drawn, as_drawn, write_png
from tune_speed.reporting.figures.front import FRONT
from tune_speed.reporting.figures.importance_bars import IMPORTANCE
from tune_speed.reporting.figures.slices import SLICES
from tune_speed.reporting.figures.step_time import STEP_TIME
from tune_speed.reporting.figures.stopped import STOPPED
from tune_speed.reporting.figures.theme import DARK, LIGHT
from tune_speed.reporting.study.view import StudyPart

FIGURES: dict[str, FigureKind] = {
    "best_so_far": BEST_SO_FAR,
    "curves": CURVES,
    "front": FRONT,
    "importance": IMPORTANCE,
    "slices": SLICES,
    "step_time": STEP_TIME,
    "stopped": STOPPED,
    "certified_vs_estimated": CERTIFIED_TIMES,
}
"""Every figure by its name, in the order of a page."""

__all__ = ["DARK", "FIGURES", "LIGHT", "Drawn", "FigureKind", "draw_png", "draw_svg"]


def draw_svg(
    name: str, part: StudyPart, *, id_prefix: str, anchors: Mapping[str, str] | None = None
) -> Drawn | None:
    """Returns a figure as an `<svg>` element for a page; None where there is nothing to draw.

    Args:
        name: one of FIGURES.
        part: of a study.
        id_prefix: of the element's ids; figures that share a page need different ones.
        anchors: ids of the elements about the trials, by run id; a point links to its
            trial's. None: they are `trial-` and the trial's id.
    """
    return as_drawn(name, FIGURES[name], part, id_prefix=id_prefix, anchors=anchors)


def draw_png(name: str, part: StudyPart, path: Path) -> bool:
    """Writes a figure as a PNG for a slide; returns whether there was anything to draw.

    Raises: StorageError if the file cannot be written.
    """
    return write_png(FIGURES[name], part, path)
