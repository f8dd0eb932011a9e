"""What training time and money buy: results of trials, and the fronts of the best."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from tune_speed.core.comparability import goodness
from tune_speed.core.records import Status
from tune_speed.core.targets import Target
from tune_speed.core.text import counted, significant
from tune_speed.reporting.figures import facts
from tune_speed.reporting.figures.axes import draw_metric_axis, scale
from tune_speed.reporting.figures.canvas import (
    LOOKS,
    SERIES,
    WORDS,
    Canvas,
    FigureKind,
    Palette,
    Sketch,
    Spot,
)
from tune_speed.reporting.study.view import StudyPart

HEIGHT = 222.0


def pareto(ends: Sequence[facts.End], target: Target) -> list[facts.End]:
    """Returns the ends that no other one beats in both time and metric, the shortest first."""

    def good(end: facts.End) -> float:
        return goodness(end.metric, target)

    return facts.improving(sorted(ends, key=lambda e: (e.train_s, -good(e))), good)


def draw(part: StudyPart, palette: Palette) -> Sketch | None:
    ends = facts.ends_of(part)
    if not ends:
        return None
    canvas = Canvas(palette, height=HEIGHT, leader=part.leader)
    panel, target = canvas.panel, part.target
    # A trial that was stopped took at least this time: no result that could be had by then.
    front = pareto([e for e in ends if e.trial.record.status is not Status.CAPPED], target)
    unit = facts.time_unit(max(end.train_s for end in ends))
    is_log = scale(panel.xaxis, [end.train_s / unit.length_s for end in ends])
    by_status = {s: [e for e in ends if e.trial.record.status is s] for s in Status}
    groups = {status: group for status, group in by_status.items() if group}
    for status, group in reversed(groups.items()):
        spots = [Spot(end.train_s / unit.length_s, end.metric, end.trial) for end in group]
        canvas.points(panel, spots, LOOKS[status])
    goal = draw_metric_axis(canvas, panel, [end.metric for end in ends], target)
    right = panel.get_xlim()[1]
    x = [*(end.train_s / unit.length_s for end in front), *[right for _ in front[-1:]]]
    y = [end.metric for end in (*front, *front[-1:])]
    panel.plot(x, y, drawstyle="steps-post", color=palette["s1"], linewidth=1.6, gid="front")
    panel.set_xlim(right=right)
    if not is_log:
        panel.set_xlim(left=min(0.0, panel.get_xlim()[0]))
    panel.set_xlabel(unit.label("training time at the end"))
    # Nothing better lies to the left of the leader: the front has its corner there.
    for end in [end for end in ends if end.trial is part.leader]:
        spot = Spot(end.train_s / unit.length_s, end.metric, end.trial)
        canvas.name(panel, spot, left_from=0.27)
    looks = {WORDS[status]: LOOKS[status] for status in groups}
    canvas.legend([*canvas.entries(looks), goal])
    return Sketch(canvas, _alt(ends, front, target))


def _alt(ends: Sequence[facts.End], front: Sequence[facts.End], target: Target) -> str:
    top = (front or pareto(ends, target))[-1]
    hits = sum(end.trial.record.time_to_target_s is not None for end in ends)
    metric, best = facts.metric_words(target), "lowest" if target.mode == "min" else "highest"
    met = f"met the target {metric} {facts.score(target.value)}"
    met = target.did_meet if target.seeks_best else met
    text = (
        f"{hits} of {counted(len(ends), 'evaluated trial')} {met}. The {best}"
        f" {metric}, {facts.score(top.metric)}, is that of {facts.name_of(top.trial)} after"
        f" {facts.duration(top.train_s)} of training"
    )
    leaders = [end for end in front if end.trial.record.time_to_target_s is not None]
    if leaders and leaders[0] is not top:
        train_s, metric_then, trial = leaders[0]
        text += (
            f"; {facts.name_of(trial)} took {facts.duration(train_s)} to {facts.score(metric_then)}"
        )
    return f"{text}. {counted(len(front), 'trial')} on the front."


FRONT = FigureKind(
    title="Training time and result",
    about="Where each trial ended. The line is the front: for each training time the best result"
    " that any trial had by then. Those that were stopped are not on it: to their ends they would"
    " have taken longer.",
    draw=draw,
)

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
    return facts.improving(sorted(found), lambda each: -each.time_s)


def priced(part: StudyPart) -> list[Priced]:
    return [
        Priced(row.expected_cost, row.expected_s, row.devices, row.trial_id)
        for row in part.priced
        if row.expected_cost and row.expected_s
    ]


def draw_costs(part: StudyPart, palette: Palette) -> Sketch | None:
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
    return Sketch(canvas, _alt_of_costs(found, front))


def _alt_of_costs(found: Sequence[Priced], front: Sequence[Priced]) -> str:
    def words(each: Priced) -> str:
        return f"{each.name}: {significant(each.cost)} and {facts.duration(each.time_s)}"

    ends = f"The cheapest is {words(front[0])}"
    quickest = f"; the quickest {words(front[-1])}" if len(front) > 1 else ""
    return f"{counted(len(found), 'recipe')}. {ends}{quickest}. {len(front)} on the front."


COST = FigureKind(
    title="Time and money",
    about="Each recipe that met the target, on all devices. The line is the front: for each cost"
    " the least expected time.",
    draw=draw_costs,
)
