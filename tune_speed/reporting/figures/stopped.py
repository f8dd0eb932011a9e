"""How the trials ended, and what share of the training went into each kind of end."""

from typing import NamedTuple

from tune_speed.core.text import counted
from tune_speed.reporting.figures.canvas import Canvas, FigureKind, Sketch
from tune_speed.reporting.figures.facts import duration, shortened, time_unit
from tune_speed.reporting.figures.theme import Palette
from tune_speed.reporting.study.endings import ENDED_BELOW, IN_TIME, REACHED, endings_of
from tune_speed.reporting.study.view import StudyPart

ROW_HEIGHT = 50.0
FRAME_HEIGHT = 16.0
MOST_KINDS = 9
THICKNESS = 0.23
NAME_WIDTH = 38
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


def draw(part: StudyPart, palette: Palette) -> Sketch | None:
    """Draws two bars for each way to end; None without a trial."""
    ended = bars(part)
    if not ended:
        return None
    canvas = Canvas(palette, height=FRAME_HEIGHT + ROW_HEIGHT * len(ended))
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
        kind, time = shortened(ending.kind, NAME_WIDTH), duration(ending.train_s, unit)
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
    draw=draw,
)
