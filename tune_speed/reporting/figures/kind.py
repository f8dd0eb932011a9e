"""What a figure is before and after it is drawn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tune_speed.reporting.figures.canvas import Canvas
from tune_speed.reporting.figures.theme import Palette
from tune_speed.reporting.study.view import StudyPart


class Sketch(NamedTuple):
    """A figure as matplotlib has it."""

    canvas: Canvas
    alt: str
    """What it shows, in a sentence with the figures themselves."""


@dataclass(frozen=True, kw_only=True)
class FigureKind:
    """A kind of figure that a part of a study can be drawn as."""

    title: str
    about: str
    """How to read it."""
    draw: Callable[[StudyPart, Palette], Sketch | None]
    """Draws it in a palette; None where there is nothing to draw."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A figure for a page."""

    name: str
    title: str
    alt: str
    svg: str
