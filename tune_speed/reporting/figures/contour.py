"""Where the good trials lie: results over the two numbers that matter most."""

import itertools
from typing import Any

import numpy as np

from tune_speed.core.comparability import best_first
from tune_speed.core.text import counted
from tune_speed.reporting.figures import facts
from tune_speed.reporting.figures.axes import padded, scale
from tune_speed.reporting.figures.canvas import Canvas, FigureKind, Sketch, Spot
from tune_speed.reporting.figures.slices import (
    LEAST_TRIALS,
    LOOKS,
    MOST_COLUMNS,
    NAME_WIDTH,
    slices,
)
from tune_speed.reporting.figures.theme import Palette
from tune_speed.reporting.importance.main_effects import Column, Floats, columns_of
from tune_speed.reporting.study.view import StudyPart, ViewedTrial

HEIGHT = 262.0
# Along each axis.
CELLS = 16
EDGES = np.linspace(0, 1, CELLS + 1)
# Further from any trial, in shares of the picture, nothing is known.
FAR = 0.13
OPACITIES = (0.05, 0.15, 0.28, 0.45, 0.65)
"""Of the ground, from the worst fifth of scores to the best."""


def chosen(part: StudyPart) -> tuple[list[Column], list[ViewedTrial]]:
    """Returns the two numbers that matter most of those that trials have together; ranges first."""
    found = [each for each in slices(part) if each.is_number]
    # Of two batch sizes there is nothing between: ranges come first.
    found.sort(key=lambda each: len(set(each.values)) <= MOST_COLUMNS)
    numbers = [each.name for each in found]
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
    x, y = np.meshgrid(EDGES[:-1] + 0.5 / CELLS, EDGES[:-1] + 0.5 / CELLS, indexing="ij")
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
    panel, entries = canvas.panel, _draw_ground(canvas, columns, trials)
    for words, look in reversed(LOOKS.items()):
        group = [trial for trial in trials if facts.outcome_of(trial, part) == words]
        places = [[float(t.record.params[c.name]) for c in columns] for t in group]
        spots = [Spot(x, y, trial) for (x, y), trial in zip(places, group, strict=True)]
        canvas.points(panel, spots, look)
        entries = [*(canvas.entries({words: look}) if group else []), *entries]
    names = facts.names_in_width(facts.searched_names(part), NAME_WIDTH)
    first, second = (names[column.name] for column in columns)
    panel.set_xlabel(first)
    canvas.title(panel, second)
    canvas.legend(entries)
    return Sketch(canvas, f"{counted(len(trials), 'trial')} over {first} and {second}.")


def _draw_ground(
    canvas: Canvas, columns: list[Column], trials: list[ViewedTrial]
) -> list[tuple[Any, str]]:
    """Draws the cells, coloured by the ranks of the trials around; returns entries of a legend."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    ordered = sorted(trials, key=lambda trial: best_first(trial.record))
    place = {trial.run_id: (n + 0.5) / len(trials) for n, trial in enumerate(ordered)}
    codes = [[column.code(t.record.params[column.name]) for column in columns] for t in trials]
    scores = ground(np.array(codes), np.array([1 - place[trial.run_id] for trial in trials]))
    sizes = [column.low + EDGES * (column.high - column.low) for column in columns]
    pairs = zip(sizes, columns, strict=True)
    x, y = ((np.exp(size) if column.is_log else size).tolist() for size, column in pairs)
    panel, colours = canvas.panel, [(canvas.palette["s3"], opacity) for opacity in OPACITIES]
    panel.pcolormesh(x, y, scores.T, cmap=ListedColormap(colours), vmin=0, vmax=1)
    x_log, y_log = (column.is_log for column in columns)
    panel.set_xlim(*padded(x, 0.03, 0.03, is_log=scale(panel.xaxis, x if x_log else [])))
    panel.set_ylim(*padded(y, 0.03, 0.03, is_log=scale(panel.yaxis, y if y_log else [])))
    return [(Patch(color=colours[n]), f"{word} fifth") for n, word in ((0, "worst"), (-1, "best"))]


CONTOUR = FigureKind(
    title="Where the good trials lie",
    about="Trials over the two ranges that matter most. The more the ground is coloured, the"
    " better the trials near by rank; where it is blank, none is near enough to tell.",
    draw=draw,
)
