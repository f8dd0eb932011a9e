"""Draws a figure in house style, as SVG or as PNG."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tune_speed.core.errors import StorageError
from tune_speed.reporting.figures.canvas import FigureKind, Sketch, style
from tune_speed.reporting.figures.svg import as_svg
from tune_speed.reporting.figures.texts import shortened
from tune_speed.reporting.figures.theme import LIGHT, SENTINELS, Palette
from tune_speed.reporting.study.view import StudyPart

# Dots per inch of a figure five inches wide: fit for a slide.
PNG_DPI = 320
STUDY_WIDTH = 44
# Height of a PNG's heading, which on a page is the page's.
HEADING = 38.0


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A figure for a page."""

    name: str
    title: str
    alt: str
    svg: str


def as_drawn(
    name: str,
    kind: FigureKind,
    part: StudyPart,
    *,
    id_prefix: str,
    anchors: Mapping[str, str] | None,
) -> Drawn | None:
    """Returns the figure as an SVG element; None where there is nothing to draw."""
    with _house_style(SENTINELS):
        sketch = _sketch(kind, part, SENTINELS)
        if sketch is None:
            return None
        svg = as_svg(sketch.canvas, id_prefix=id_prefix, alt=sketch.alt, anchors=anchors)
    return Drawn(name=name, title=kind.title, alt=sketch.alt, svg=svg)


def write_png(kind: FigureKind, part: StudyPart, path: Path) -> bool:
    """Writes the figure in light colours, with its title; returns whether there was one to draw.

    Raises: StorageError if the file cannot be written.
    """
    with _house_style(LIGHT):
        sketch = _sketch(kind, part, LIGHT)
        if sketch is None:
            return False
        figure = sketch.canvas.figure
        sketch.canvas.grow(HEADING)
        study = shortened((part.trials or part.certified)[0].record.study, STUDY_WIDTH)
        figure.suptitle(f"{kind.title}\n{study}", x=0.012, ha="left", fontsize=13)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, format="png", dpi=PNG_DPI, facecolor=LIGHT["surface"])
        except OSError as error:
            raise StorageError(f"{path} must be writable, but got: {error.strerror}.") from error
    return True


def _sketch(kind: FigureKind, part: StudyPart, palette: Palette) -> Sketch | None:
    is_empty = not part.trials and not part.certified
    return None if is_empty else kind.draw(part, palette)


@contextmanager
def _house_style(palette: Palette) -> Iterator[None]:
    """Gives matplotlib the house's settings."""
    # Whatever a user's matplotlibrc says; rc_context puts it back.
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # A page's fonts have the signs that matplotlib's lacks; a PNG shows boxes for them.
        warnings.filterwarnings(
            "ignore", message="Glyph .* missing from font", category=UserWarning
        )
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(style(palette))
        yield
