"""Figures of a study's part: inline SVG for a page, PNG for a slide.

Matplotlib, which takes a second, is imported when one is drawn.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from tune_speed.core.targets import Target
from tune_speed.reporting.figures import canvas
from tune_speed.reporting.figures.bars import IMPORTANCE, STOPPED
from tune_speed.reporting.figures.best_so_far import BEST_SO_FAR
from tune_speed.reporting.figures.certified_times import CERTIFIED_TIMES
from tune_speed.reporting.figures.curves import CURVES, Curve, draw_curves
from tune_speed.reporting.figures.facts import shortened
from tune_speed.reporting.figures.front import COST, FRONT
from tune_speed.reporting.figures.parallel import PARALLEL
from tune_speed.reporting.figures.slices import CONTOUR, SLICES
from tune_speed.reporting.figures.step_time import STEP_TIME
from tune_speed.reporting.figures.svg import as_svg
from tune_speed.reporting.plot_style import write_figure
from tune_speed.reporting.study.view import StudyPart

# Of a PNG, in pixels: a slide.
SLIDE = (1920, 1080)
STUDY_WIDTH = 44
# Height of a PNG's heading, which on a page is the page's.
HEADING = 38.0

FIGURES: dict[str, canvas.FigureKind] = {
    "best_so_far": BEST_SO_FAR,
    "front": FRONT,
    "cost": COST,
    "parallel": PARALLEL,
    "curves": CURVES,
    "importance": IMPORTANCE,
    "slices": SLICES,
    "contour": CONTOUR,
    "step_time": STEP_TIME,
    "stopped": STOPPED,
    "certified_vs_estimated": CERTIFIED_TIMES,
}
"""Every figure by its name, in the order of a page."""


class Drawn(NamedTuple):
    """A figure for a page."""

    name: str
    title: str
    about: str
    alt: str
    svg: Markup
    """All names in it are escaped."""
    is_wide: bool


def draw_svg(
    name: str, part: StudyPart, *, id_prefix: str, anchors: Mapping[str, str] | None = None
) -> Drawn | None:
    """Returns a figure as `<svg>` for a page, see `as_svg`; None where nothing can be drawn."""
    kind = FIGURES[name]
    with _sketched(partial(_of_part, kind, part), canvas.SENTINELS) as sketch:
        if sketch is None:
            return None
        svg = as_svg(sketch.canvas, id_prefix=id_prefix, alt=sketch.alt, anchors=anchors)
        every, is_wide = sketch.canvas.every, sketch.canvas.is_wide
    thinned = f" Of the many points, one in {every} is drawn." if every > 1 else ""
    return Drawn(name, kind.title, kind.about + thinned, sketch.alt, Markup(svg), is_wide)


def draw_png(name: str, part: StudyPart, path: Path) -> bool:
    """Writes a figure, in light; returns whether there was one. Raises: StorageError."""
    kind = FIGURES[name]
    with _sketched(partial(_of_part, kind, part), canvas.LIGHT) as sketch:
        if sketch is None:
            return False
        sketch.canvas.grow(HEADING)
        study = shortened((part.trials or part.certified)[0].record.study, STUDY_WIDTH)
        sketch.canvas.figure.suptitle(f"{kind.title}\n{study}", x=0.012, ha="left", fontsize=13)
        # More room on one of both, until it is as wide for its height as a slide.
        (width, height), ratio = sketch.canvas.figure.get_size_inches(), SLIDE[0] / SLIDE[1]
        sketch.canvas.figure.set_size_inches(max(width, ratio * height), max(height, width / ratio))
        # Pixels are cut off, not rounded.
        dpi = (SLIDE[0] + 0.01) / sketch.canvas.figure.get_figwidth()
        write_figure(sketch.canvas.figure, path, dpi=dpi, facecolor=canvas.LIGHT["surface"])
    return True


def draw_trial_svg(curves: Sequence[Curve], target: Target, *, id_prefix: str) -> Drawn | None:
    """Returns the curves of one trial's runs as `draw_svg` does; None without any."""
    with _sketched(partial(draw_curves, curves, target), canvas.SENTINELS) as sketch:
        if sketch is None:
            return None
        svg = as_svg(sketch.canvas, id_prefix=id_prefix, alt=sketch.alt)
    return Drawn("curve", "Learning curve", sketch.alt, sketch.alt, Markup(svg), is_wide=False)


def _of_part(
    kind: canvas.FigureKind, part: StudyPart, palette: canvas.Palette
) -> canvas.Sketch | None:
    return kind.draw(part, palette) if part.trials or part.certified else None


@contextmanager
def _sketched(
    draw: Callable[[canvas.Palette], canvas.Sketch | None], palette: canvas.Palette
) -> Iterator[canvas.Sketch | None]:
    """Yields the figure in the house's settings of matplotlib, whatever a matplotlibrc says."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # A page's fonts have the signs that matplotlib's lacks; a PNG shows boxes for them.
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from font", category=UserWarning
        )
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(canvas.style(palette))
        yield draw(palette)
