"""Parallel coordinates: each trial is a line across axes of its parameters and its result."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tune_speed.core.comparability import final_metric
from tune_speed.core.text import counted
from tune_speed.reporting.figures import facts
from tune_speed.reporting.figures.canvas import WIDE, Canvas, FigureKind, Palette, Sketch
from tune_speed.reporting.importance import Column, columns_of
from tune_speed.reporting.study.view import StudyPart

HEIGHT = 330.0
# Axes of parameters: more would leave no room for their numbers.
MOST = 10
NAME_WIDTH, TICK_WIDTH = 19, 11
# Least distance of two ticks, as a share of the axis, whose ends are 0 and 1.
TICK_GAP = 0.065
# Where the lines of trials without a value cross.
FOOT = -0.13
LOOKS = {"missed": ("muted", 0.7), "met target": ("s1", 0.9), "leader": ("s4", 2.6)}
"""Colour and width of the lines, those that lie on top last."""


class Axis(NamedTuple):
    """One axis, with the height at which the line of each trial crosses it."""

    label: str
    column: Column
    heights: list[float]
    """From 0 to 1; FOOT for a trial without a value."""

    def ticks(self) -> dict[float, str]:
        column, texts = self.column, dict[float, str]()
        codes = (0.0, 0.25, 0.5, 0.75, 1.0) if column.levels is None else column.levels
        for code in map(float, codes):
            height = code / max(1, len(column.categories) - 1)
            if not texts or height - max(texts) >= TICK_GAP:
                texts[height] = facts.shortened(_text(column, code), TICK_WIDTH)
        return texts


def axes_of(part: StudyPart) -> list[Axis]:
    """Returns the axes: parameters, what matters most last, then the results; none without both."""
    metric = facts.metric_words(part.target)
    unit = facts.time_unit(max(map(facts.time_s_of, facts.reached(part)), default=0.0))
    is_best = part.target.seeks_best
    time = unit.label("training time" if is_best else "time to target")
    chosen, ended = list[dict[str, Any]](), list[dict[str, Any]]()
    for record in (trial.record for trial in part.trials):
        params = record.params.items()
        chosen.append({name: facts.plain(v) for name, v in params if v is not None})
        time_s = record.time_to_target_s
        results = {metric: final_metric(record), time: time_s and time_s / unit.length_s}
        known = {name: v for name, v in results.items() if v is not None}
        ended.append({name: v for name, v in known.items() if math.isfinite(v)})
    weights = {name: place for place, name in enumerate(facts.names_by_weight(part))}
    names = facts.names_in_width(list(weights), NAME_WIDTH)
    shown = sorted(columns_of(chosen), key=lambda column: weights[column.name])[:MOST]
    first = [_axis(names[column.name], column, chosen) for column in reversed(shown)]
    last = [_axis(column.name, column, ended) for column in columns_of(ended)]
    return [*first, *last] if first and last else []


def draw(part: StudyPart, palette: Palette) -> Sketch | None:
    axes = axes_of(part)
    if not axes:
        return None
    canvas = Canvas(palette, height=HEIGHT, width=WIDE, leader=part.leader)
    _draw_axes(canvas, axes)
    groups: dict[str, list[int]] = {words: [] for words in LOOKS}
    for number, trial in enumerate(part.trials):
        groups[facts.outcome_of(trial, part)].append(number)
    entries = []
    for words, numbers in groups.items():
        role, width = LOOKS[words]
        paths = [[(x, axis.heights[n]) for x, axis in enumerate(axes)] for n in numbers]
        trials = [part.trials[number] for number in numbers]
        if drawn := canvas.lines(canvas.panel, paths, trials, role=role, width=width):
            entries.append((drawn, words))
    canvas.legend(entries[::-1])
    shown = ", ".join(axis.label for axis in axes)
    return Sketch(canvas, f"{counted(len(part.trials), 'trial')} as lines across {shown}.")


def _axis(label: str, column: Column, rows: Sequence[Mapping[str, Any]]) -> Axis:
    top = max(1, len(column.categories) - 1)
    codes = [column.code(row[column.name]) / top if column.name in row else FOOT for row in rows]
    return Axis(label, column, codes)


def _text(column: Column, code: float) -> str:
    if column.categories:
        return column.categories[int(code)]
    size = column.low + code * (column.high - column.low)
    return facts.number(math.exp(size) if column.is_log else size)


def _draw_axes(canvas: Canvas, axes: Sequence[Axis]) -> None:
    panel = canvas.panel
    panel.set_axis_off()
    # Room for the last axis' numbers: measuring all of them would take the layout a second.
    panel.set_xlim(-0.1, len(axes) - 0.45)
    panel.vlines(range(len(axes)), FOOT, 1.0, color=canvas.palette["muted"], linewidth=1.0)
    for x, axis in enumerate(axes):
        # Names stand at two heights, so that each has room for twice as many letters.
        above = (0, 7 + 14 * (x % 2))
        name, points = axis.label, "offset points"
        panel.annotate(name, (x, 1.0), above, textcoords=points, ha="center", va="bottom")
        texts = axis.ticks() | ({FOOT: "none"} if FOOT in axis.heights else {})
        for height, text in texts.items():
            look = {"va": "center", "in_layout": False}
            canvas.label(panel, text, (x, height), is_left=False, offset=(4, 0), **look)


PARALLEL = FigureKind(
    title="Parameters and results together",
    about="Each line is a trial; it crosses each axis at its value, and at the foot where it has"
    " none. The parameters that matter most stand next to the results. Drag along an axis to keep"
    " the lines that cross it there, and along others to narrow them down; a double click clears.",
    draw=draw,
)
