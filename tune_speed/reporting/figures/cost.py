"""What money buys: expected time against expected cost of recipes, on all devices."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tune_speed.core.text import counted, significant
from tune_speed.reporting.figures import facts
from tune_speed.reporting.figures.axes import scale
from tune_speed.reporting.figures.canvas import Canvas, FigureKind, Sketch
from tune_speed.reporting.figures.theme import SERIES, Palette
from tune_speed.reporting.study.view import StudyPart

HEIGHT = 222.0
MARKERS = "osD^vPX*"
NAME_WIDTH = 34


class Priced(NamedTuple):
    """A recipe with what it costs to meet the target."""

    cost: float
    time_s: float
    """Expected time with restarts [s]."""
    devices: str
    name: str


def front_of(found: Sequence[Priced]) -> list[Priced]:
    """Returns those that no other one beats in both time and cost, the cheapest first."""
    front: list[Priced] = []
    for each in sorted(found):
        if not front or each.time_s < front[-1].time_s:
            front.append(each)
    return front


def priced(part: StudyPart) -> list[Priced]:
    return [
        Priced(row.expected_cost, row.expected_s, row.devices, row.trial_id)
        for row in part.priced
        if row.expected_cost and row.expected_s
    ]


def draw(part: StudyPart, palette: Palette) -> Sketch | None:
    """Draws a point a recipe and the front; None where no cost is known, or one device alone is."""
    found = priced(part)
    kinds = list(dict.fromkeys(each.devices for each in found))
    # On one device cost is time but for a factor.
    if len(kinds) < 2:
        return None
    canvas, front = Canvas(palette, height=HEIGHT), front_of(found)
    panel, unit = canvas.panel, facts.time_unit(max(each.time_s for each in found))
    entries = list[tuple[Any, str]]()
    for number, kind in enumerate(kinds):
        own = [each for each in found if each.devices == kind]
        (drawn,) = panel.plot(
            [each.cost for each in own],
            [each.time_s / unit.length_s for each in own],
            linestyle="none",
            marker=MARKERS[number % len(MARKERS)],
            color=palette[SERIES[(number + 1) % len(SERIES)]],
            gid=f"priced-{number}",
        )
        entries.append((drawn, facts.shortened(kind, NAME_WIDTH)))
    (line,) = panel.plot(
        [*(each.cost for each in front), max(each.cost for each in found)],
        [each.time_s / unit.length_s for each in (*front, front[-1])],
        drawstyle="steps-post",
        color=palette["s1"],
        linewidth=1.6,
        gid="front",
    )
    scale(panel.xaxis, [each.cost for each in found])
    scale(panel.yaxis, [each.time_s / unit.length_s for each in found])
    panel.set_xlabel("expected cost, in the currency of the prices")
    canvas.title(panel, unit.label("expected time with restarts"))
    canvas.legend([*entries, (line, "no other is quicker and cheaper")])
    return Sketch(canvas, _alt(found, front))


def _alt(found: Sequence[Priced], front: Sequence[Priced]) -> str:
    def words(each: Priced) -> str:
        return f"{each.name}: {significant(each.cost)} and {facts.duration(each.time_s)}"

    ends = f"The cheapest is {words(front[0])}"
    quickest = f"; the quickest {words(front[-1])}" if len(front) > 1 else ""
    return f"{counted(len(found), 'recipe')}. {ends}{quickest}. {len(front)} on the front."


COST = FigureKind(
    title="Time and money",
    about="Each recipe that met the target, on all devices. The line is the front: for each cost"
    " the least expected time.",
    draw=draw,
)
