"""Where the good trials lie: results over the two numbers that matter most."""

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from tune_speed.core.comparability import best_first
from tune_speed.core.text import counted
from tune_speed.reporting.figures import facts
from tune_speed.reporting.figures.axes import padded, scale
from tune_speed.reporting.figures.canvas import Canvas, FigureKind, Sketch, Spot
from tune_speed.reporting.figures.slices import LEAST_TRIALS, LOOKS, NAME_WIDTH, slices
from tune_speed.reporting.figures.theme import Look, Palette
from tune_speed.reporting.importance.main_effects import Column, Floats, columns_of
from tune_speed.reporting.study.view import StudyPart, ViewedTrial

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.patches import PathPatch

HEIGHT = 262.0
# Along each axis.
CELLS = 16
# Further from any trial, in shares of the picture, nothing is known.
FAR = 0.13
OPACITIES = (0.05, 0.15, 0.28, 0.45, 0.65)
"""Of the ground, from the worst fifth of scores to the best."""


def chosen(part: StudyPart) -> tuple[list[Column], list[ViewedTrial]]:
    """Returns the two most important numbers that trials have together, and these trials."""
    numbers = [each.name for each in slices(part) if each.is_number]
    for names in itertools.combinations(numbers, 2):
        trials = [t for t in part.trials if all(t.record.params.get(n) is not None for n in names)]
        columns = columns_of([{name: t.record.params[name] for name in names} for t in trials])
        if len(columns) == 2 and len(trials) >= LEAST_TRIALS:
            return list(columns), trials
    return [], []


def ground(places: Floats, scores: Floats) -> Floats:
    """Returns what trials at `places` (N, 2) of the unit square score around each cell (C, C).

    It is the mean of `scores` (N,), weighed by the distance to the power of -4; nan far from all.
    """
    middles = (np.arange(CELLS) + 0.5) / CELLS
    x, y = np.meshgrid(middles, middles, indexing="ij")
    squares = (x[..., None] - places[:, 0]) ** 2 + (y[..., None] - places[:, 1]) ** 2
    # A trial in the middle of a cell must not outweigh all others.
    weights = (squares + CELLS**-2) ** -2.0
    means = (weights * scores).sum(axis=-1) / weights.sum(axis=-1)
    return np.where(squares.min(axis=-1) <= FAR**2, means, np.nan)


def draw(part: StudyPart, palette: Palette) -> Sketch | None:
    """Draws the trials over a ground of cells; None without two such numbers."""
    columns, trials = chosen(part)
    if not columns:
        return None
    canvas = Canvas(palette, height=HEIGHT, leader=part.leader)
    panel = canvas.panel
    panel.set_xlim(*_scale(panel.xaxis, columns[0]))
    panel.set_ylim(*_scale(panel.yaxis, columns[1]))
    patches = _draw_ground(canvas, columns, trials)
    shown: dict[str, Look] = {}
    for words, look in reversed(LOOKS.items()):
        group = [trial for trial in trials if facts.outcome_of(trial, part) == words]
        places = [[float(t.record.params[c.name]) for c in columns] for t in group]
        spots = [Spot(x, y, trial) for (x, y), trial in zip(places, group, strict=True)]
        canvas.points(panel, spots, look)
        shown |= {words: look} if group else {}
    names = facts.names_in_width(facts.searched_names(part), NAME_WIDTH)
    first, second = (names[column.name] for column in columns)
    panel.set_xlabel(first)
    canvas.title(panel, second)
    ends_of_scale = [(patches[0], "worst fifth"), (patches[-1], "best fifth")]
    canvas.legend([*canvas.entries(shown)[::-1], *ends_of_scale])
    return Sketch(canvas, f"{counted(len(trials), 'trial')} over {first} and {second}.")


def _draw_ground(
    canvas: Canvas, columns: list[Column], trials: list[ViewedTrial]
) -> "list[PathPatch]":
    """Draws the cells, in a shape for each fifth of the trials' ranks; returns the shapes."""
    ordered = sorted(trials, key=lambda trial: best_first(trial.record))
    place = {trial.run_id: (n + 0.5) / len(trials) for n, trial in enumerate(ordered)}
    codes = [[column.code(t.record.params[column.name]) for column in columns] for t in trials]
    scores = ground(np.array(codes), np.array([1 - place[trial.run_id] for trial in trials]))
    edges = [_values(column, np.linspace(0, 1, CELLS + 1)) for column in columns]
    levels, colour = np.floor(len(OPACITIES) * scores), canvas.palette["s3"]
    patches = [
        _patch(edges, np.argwhere(levels == level).tolist(), color=colour, alpha=opacity)
        for level, opacity in enumerate(OPACITIES)
    ]
    for patch in patches:
        canvas.panel.add_patch(patch)
    return patches


def _scale(axis: "Axis", column: Column) -> tuple[float, float]:
    """Scales an axis; returns its ends."""
    ends = _values(column, np.array([0.0, 1.0])).tolist()
    return padded(ends, 0.03, 0.03, is_log=scale(axis, ends if column.is_log else []))


def _values(column: Column, codes: Floats) -> Floats:
    sizes = column.low + codes * (column.high - column.low)
    return np.exp(sizes) if column.is_log else sizes


def _patch(edges: list[Floats], cells: list[list[int]], **look: Any) -> "PathPatch":
    """Returns cells, by their places along both axes, as one shape."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path
    from matplotlib.transforms import Bbox, BboxTransformTo

    x, y = edges
    boxes = [Bbox([[x[i], y[j]], [x[i + 1], y[j + 1]]]) for i, j in cells]
    squares = [Path.unit_rectangle().transformed(BboxTransformTo(box)) for box in boxes]
    return PathPatch(Path.make_compound_path(*squares), linewidth=0, **look)


CONTOUR = FigureKind(
    title="Where the good trials lie",
    about="Trials over the two numbers that matter most. The ground is the darker, the better the"
    " trials near by ranked; where it is blank, no trial is near enough to tell.",
    draw=draw,
)
