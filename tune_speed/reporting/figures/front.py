"""What training time buys: the metric at the end of each trial, and the front of the best."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tune_speed.core.comparability import goodness
from tune_speed.core.records import Status
from tune_speed.core.targets import Target
from tune_speed.core.text import counted
from tune_speed.reporting.figures import facts
from tune_speed.reporting.figures.axes import draw_metric_axis, scale
from tune_speed.reporting.figures.canvas import Canvas, FigureKind, Sketch, Spot
from tune_speed.reporting.figures.theme import LOOKS, WORDS, Palette
from tune_speed.reporting.study.view import StudyPart

if TYPE_CHECKING:
    pass

HEIGHT = 222.0


def pareto(ends: Sequence[facts.End], target: Target) -> list[facts.End]:
    """Returns the ends that no other one beats in both time and metric, the shortest first."""

    def good(end: facts.End) -> float:
        return goodness(end.metric, target)

    front: list[facts.End] = []
    for end in sorted(ends, key=lambda e: (e.train_s, -good(e))):
        if not front or good(end) > good(front[-1]):
            front.append(end)
    return front


def draw(part: StudyPart, palette: Palette) -> Sketch | None:
    """Draws each trial's end and the front; None if none was evaluated."""
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


def _met(target: Target) -> str:
    if target.seeks_best:
        return target.did_meet
    return f"met the target {facts.metric_words(target)} {facts.score(target.value)}"


def _alt(ends: Sequence[facts.End], front: Sequence[facts.End], target: Target) -> str:
    top = (front or pareto(ends, target))[-1]
    hits = sum(end.trial.record.time_to_target_s is not None for end in ends)
    metric, best = facts.metric_words(target), "lowest" if target.mode == "min" else "highest"
    text = (
        f"{hits} of {counted(len(ends), 'evaluated trial')} {_met(target)}. The {best}"
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
