"""Results against the most important parameters, one by one, and two together."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tune_speed.core.comparability import best_first
from tune_speed.core.records import ended_as
from tune_speed.core.text import counted
from tune_speed.reporting.figures import facts
from tune_speed.reporting.figures.axes import padded, scale, spans_decade
from tune_speed.reporting.figures.canvas import (
    WIDE,
    WIDTH,
    Canvas,
    FigureKind,
    Look,
    Palette,
    Sketch,
    Spot,
)
from tune_speed.reporting.importance import Column, Floats, columns_of
from tune_speed.reporting.study.view import StudyPart, ViewedTrial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Parameters of any kind, and numbers besides.
MOST, MOST_OTHERS = 6, 18
LEAST_TRIALS = 5
# Beside one another; two panels or one need no wide figure.
COLUMNS = 4
PANEL_HEIGHT = 128.0
FRAME_HEIGHT = 20.0
NAME_WIDTH = 23
# Characters of all names of columns together.
COLUMN_CHARACTERS = 22
MOST_COLUMNS = 6
OTHERS = "others"
HIT = Look("o", "s1", True, 17.0)
MISS = Look("s", "s2", False, 9.0)
LEADER = Look("o", "s4", True, 40.0)
LOOKS = {"leader": LEADER, "met target": HIT, "missed": MISS}
NUM_TICKS = 4
JITTER = 0.56
_GOLDEN = (math.sqrt(5) - 1) / 2


class Slice(NamedTuple):
    """The trials that have a parameter."""

    name: str
    values: list[Any]
    trials: list[ViewedTrial]

    @property
    def is_number(self) -> bool:
        return all(isinstance(value, int | float) for value in self.values)


def slices(part: StudyPart) -> list[Slice]:
    """Returns slices along what was varied: the most important parameters, and all numbers."""
    found: list[Slice] = []
    for name in facts.names_by_weight(part):
        having = [trial for trial in part.trials if trial.record.params.get(name) is not None]
        values = [facts.plain(trial.record.params[name]) for trial in having]
        if len(set(map(str, values))) > 1:
            found.append(Slice(name, values, having))
    others = [each for each in found[MOST:] if each.is_number]
    # Stable but for the epochs, which a search for speed is about.
    return [*found[:MOST], *sorted(others, key=lambda each: each.name != "epochs")[:MOST_OTHERS]]


def draw(part: StudyPart, palette: Palette) -> Sketch | None:
    found = slices(part) if facts.reached(part) and len(part.trials) >= LEAST_TRIALS else []
    if not found:
        return None
    columns = 2 if len(found) <= 2 else COLUMNS
    rows = math.ceil(len(found) / columns)
    height = FRAME_HEIGHT + PANEL_HEIGHT * rows
    width = WIDTH if columns < COLUMNS else WIDE
    canvas = Canvas(
        palette, height=height, width=width, rows=rows, columns=columns, leader=part.leader
    )
    for panel in canvas.panels[len(found) :]:
        panel.set_visible(False)
    measure = facts.measure_of(part)
    names = facts.names_in_width(facts.searched_names(part), NAME_WIDTH)
    for place, (panel, each) in enumerate(zip(canvas.panels, found, strict=False)):
        _draw_slice(canvas, panel, each, part, measure)
        panel.set_xlabel(names[each.name], labelpad=1)
        panel.tick_params(labelleft=place % columns == 0)
    canvas.title(canvas.panel, measure.axis)
    outcomes = {facts.outcome_of(trial, part) for trial in part.trials}
    canvas.legend(canvas.entries({words: LOOKS[words] for words in LOOKS if words in outcomes}))
    return Sketch(canvas, _alt(part, found, names))


def _draw_slice(
    canvas: Canvas, panel: "Axes", each: Slice, part: StudyPart, measure: facts.Measure
) -> None:
    # Alike in all panels: only the left ones have labels. Misses are drawn at the worse edge.
    known = [v for trial in facts.reached(part) if (v := measure.of(trial)) is not None]
    room = (0.1, 0.25) if measure.is_falling else (0.25, 0.1)
    bottom, top = padded(known, *room, is_log=scale(panel.yaxis, known, num_ticks=NUM_TICKS))
    edge = top if measure.is_falling else bottom
    panel.set_ylim(bottom, top)
    # Numbers are on a scale where they are too many for a column each.
    has_scale = each.is_number and len(set(each.values)) > MOST_COLUMNS
    places = _numbers(panel, each) if has_scale else _columns(panel, each)
    groups: dict[Look, list[tuple[Spot, str]]] = {MISS: [], HIT: [], LEADER: []}
    for x, trial, value in zip(places, each.trials, each.values, strict=True):
        value_there = measure.of(trial)
        look = LOOKS[facts.outcome_of(trial, part)]
        outcome = ended_as(trial.record) if value_there is None else measure.text(trial)
        tip = f"{facts.name_of(trial)} · {outcome} · {facts.shortened(_text(value), 32)}"
        groups[look].append((Spot(x, edge if value_there is None else value_there, trial), tip))
    for look, marks in groups.items():
        canvas.points(panel, [spot for spot, _ in marks], look, texts=[tip for _, tip in marks])


def _numbers(panel: "Axes", each: Slice) -> list[float]:
    values = [float(value) for value in each.values]
    is_log = spans_decade(values)
    limits = padded(values, 0.06, 0.06, is_log=is_log)
    scale(panel.xaxis, limits if is_log else [], num_ticks=NUM_TICKS)
    panel.set_xlim(*limits)
    return values


def _columns(panel: "Axes", each: Slice) -> list[float]:
    texts = [_text(value) for value in each.values]
    counts = Counter(texts)
    common = [text for text, _ in counts.most_common(MOST_COLUMNS)]
    common.sort(key=float if each.is_number else str)
    columns = [*common, OTHERS] if len(counts) > len(common) else common
    width = COLUMN_CHARACTERS // len(columns)
    panel.set_xticks(
        range(len(columns)), [facts.shortened(name, max(3, width)) for name in columns]
    )
    panel.set_xlim(-0.5, len(columns) - 0.5)
    panel.grid(visible=False, axis="x")
    column = {name: place for place, name in enumerate(common)}
    seen: Counter[int] = Counter()
    places = []
    for text in texts:
        at = column.get(text, len(columns) - 1)
        # Multiples of the golden ratio spread any number of points evenly, and always alike.
        places.append(at + JITTER * ((0.5 + seen[at] * _GOLDEN) % 1 - 0.5))
        seen[at] += 1
    return places


def _alt(part: StudyPart, found: Sequence[Slice], names: dict[str, str]) -> str:
    leader = part.leader
    assert leader is not None
    params = leader.record.params
    measure = facts.measure_of(part)
    name = measure.name.capitalize()
    values = [
        f"{names[each.name]} {facts.shortened(_text(params[each.name]), 24)}"
        for each in found
        if params.get(each.name) is not None
    ]
    return (
        f"{name} against {counted(len(found), 'parameter')}. The leader,"
        f" {facts.name_of(leader)} with {measure.text(leader)}, has"
        f" {', '.join(values) or 'none of them'}."
    )


def _text(value: Any) -> str:
    plain = facts.plain(value)
    return str(plain) if isinstance(plain, str) else facts.number(plain)


SLICES = FigureKind(
    title="Result by parameter",
    about="Each point is a trial; those at the outer edge missed the target. The parameters that"
    " matter most come first.",
    draw=draw,
)

GROUND_HEIGHT = 262.0
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


def draw_contour(part: StudyPart, palette: Palette) -> Sketch | None:
    columns, trials = chosen(part)
    if not columns:
        return None
    canvas = Canvas(palette, height=GROUND_HEIGHT, leader=part.leader)
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
    draw=draw_contour,
)
