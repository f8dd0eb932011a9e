"""Bars: how much each parameter matters, and how the trials ended."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tune_speed.core.text import counted
from tune_speed.reporting.figures import facts
from tune_speed.reporting.figures.axes import scale
from tune_speed.reporting.figures.canvas import Canvas, FigureKind, Palette, Sketch
from tune_speed.reporting.figures.facts import duration, shortened, time_unit
from tune_speed.reporting.importance import Importance, ParamImportance
from tune_speed.reporting.study.view import ENDED_BELOW, IN_TIME, REACHED, StudyPart, endings_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PARAMS = 7
ROW_HEIGHT = 19.0
FRAME_HEIGHT = 52.0
# Characters of a line of a note.
NOTE_LINE = 60
NAME_WIDTH = 21
TOLD = 3
# A parameter is left out whose interval does not come so far, unless it is among the first.
LEAST_SHOWN = 0.02


def draw(part: StudyPart, palette: Palette) -> Sketch | None:
    answers = facts.importances_of(part) if part.trials else ()
    if not any(answer.params for answer in answers):
        return None
    # Short among all that were searched: `lr` would hide which optimizer's it is.
    names = facts.names_in_width(facts.searched_names(part), NAME_WIDTH)
    heights = [
        FRAME_HEIGHT + ROW_HEIGHT * len(_top(answer))
        if answer.params
        else 26.0 + 16.0 * len(textwrap.wrap(_why_none(answer), NOTE_LINE))
        for answer in answers
    ]
    canvas = Canvas(palette, height=sum(heights), rows=len(answers), heights=heights)
    for panel, answer, role in zip(canvas.panels, answers, ("s1", "s2", "s3"), strict=False):
        explained = "" if answer.explained is None else f", R² {answer.explained:.2f}"
        canvas.heading(
            panel, f"{facts.clean(answer.title)} ({counted(answer.n, 'trial')}{explained})"
        )
        if answer.params:
            _draw_bars(canvas, panel, _top(answer), names, role)
        else:
            canvas.note(panel, textwrap.fill(_why_none(answer), NOTE_LINE))
    return Sketch(canvas, " ".join(_alt(answer, names) for answer in answers))


def _top(answer: Importance) -> list[ParamImportance]:
    ordered = sorted(answer.params, key=lambda parameter: -parameter.value)[:MOST_PARAMS]
    return [p for place, p in enumerate(ordered) if place < TOLD or p.high >= LEAST_SHOWN]


def _draw_bars(
    canvas: Canvas,
    panel: "Axes",
    params: Sequence[ParamImportance],
    names: Mapping[str, str],
    role: str,
) -> None:
    rows, values = range(len(params)), [parameter.value for parameter in params]
    panel.barh(rows, values, 0.66, color=canvas.palette[role])
    low, high = zip(*((parameter.low, parameter.high) for parameter in params), strict=True)
    panel.hlines(rows, low, high, color=canvas.palette["ink"], linewidth=1.2)
    panel.set_yticks(rows, [names[parameter.name] for parameter in params])
    panel.set_ylim(len(params) - 0.4, -0.6)
    panel.grid(visible=False, axis="y")
    scale(panel.xaxis, [])
    panel.set_xlim(left=0.0)


def _why_none(answer: Importance) -> str:
    text = facts.clean(answer.why_none or "there is no answer").rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."


def _alt(answer: Importance, names: Mapping[str, str]) -> str:
    title = facts.clean(answer.title)
    if not answer.params:
        return f"{title}: {_why_none(answer)}"
    top = _top(answer)[:TOLD]
    parts = [
        f"{names[p.name]} {facts.number(p.value)} ({facts.number(p.low)}–{facts.number(p.high)})"
        for p in top
    ]
    return f"{title}, most important of {counted(answer.n, 'trial')}: {', '.join(parts)}."


IMPORTANCE = FigureKind(
    title="What mattered",
    about="How much each parameter matters, for three questions. Lines across the bars are"
    " intervals: bars whose lines overlap may well be in another order. R² is the share of the"
    " differences that the parameters predict together.",
    draw=draw,
)

END_HEIGHT = 50.0
END_FRAME_HEIGHT = 16.0
MOST_KINDS = 9
THICKNESS = 0.23
KIND_WIDTH = 38
REST = "other ends"


class Bar(NamedTuple):
    """The trials that ended in one way."""

    kind: str
    trials: int
    train_s: float
    """Training clock of them together [s]."""


def bars(part: StudyPart) -> list[Bar]:
    """Returns the part's trials by how they ended: first what came to its end, then the most."""
    found = [Bar(e.kind, len(e.trials), e.train_s) for e in endings_of(part)]
    place = {REACHED: 0, IN_TIME: 0, ENDED_BELOW: 1}
    ordered = sorted(found, key=lambda e: (place.get(e.kind, 2), -e.trials, e.kind))
    if len(ordered) <= MOST_KINDS:
        return ordered
    shown, rest = ordered[: MOST_KINDS - 1], ordered[MOST_KINDS - 1 :]
    return [*shown, Bar(REST, sum(e.trials for e in rest), sum(e.train_s for e in rest))]


def draw_ends(part: StudyPart, palette: Palette) -> Sketch | None:
    ended = bars(part)
    if not ended:
        return None
    canvas = Canvas(palette, height=END_FRAME_HEIGHT + END_HEIGHT * len(ended))
    panel = canvas.panel
    num_trials, train_s = sum(e.trials for e in ended), sum(e.train_s for e in ended)
    unit = time_unit(max(e.train_s for e in ended))
    shares_of = [
        ("of the trials", "s1", [e.trials / num_trials for e in ended]),
        ("of the training time", "s5", [e.train_s / (train_s or 1.0) for e in ended]),
    ]
    drawn = []
    for place, (label, role, shares) in enumerate(shares_of):
        rows = [row + THICKNESS * (place + 0.62) for row in range(len(ended))]
        percents = [100 * share for share in shares]
        drawn.append((panel.barh(rows, percents, 0.86 * THICKNESS, color=palette[role]), label))
        labels = ["<1 %" if 0 < percent < 1 else f"{percent:.0f} %" for percent in percents]
        panel.bar_label(drawn[-1][0], labels, padding=3, fontsize=10)
    for row, ending in enumerate(ended):
        kind, time = shortened(ending.kind, KIND_WIDTH), duration(ending.train_s, unit)
        panel.text(0, row - 0.06, f"{kind}: {ending.trials} ({time})", va="bottom")
    panel.set_xlim(0, 112)
    panel.set_ylim(len(ended) - 0.45, -0.5)
    panel.set_axis_off()
    canvas.legend(drawn)
    parts = [f"{e.kind}: {e.trials} in {duration(e.train_s, unit)}" for e in ended]
    total = f"{counted(num_trials, 'trial')}, {duration(train_s)} of training"
    return Sketch(canvas, f"{total}. {'; '.join(parts)}.")


STOPPED = FigureKind(
    title="How the trials ended",
    about="What became of the trials, and how much of the training time each kind of end took.",
    draw=draw_ends,
)
