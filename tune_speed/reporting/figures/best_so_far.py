"""Best time to target, or metric within a time, so far, over the time that the search took."""

from typing import NamedTuple

from tune_speed.core.text import counted
from tune_speed.reporting.figures import facts
from tune_speed.reporting.figures.axes import padded, scale
from tune_speed.reporting.figures.canvas import Canvas, FigureKind, Look, Palette, Sketch, Spot
from tune_speed.reporting.study.view import StudyPart, ViewedTrial, search_clock_s

HEIGHT = 220.0
HIT = Look("o", "muted", False, 16.0)
BEST = Look("o", "s1", True, 34.0)
MISS = Look("|", "muted", False, 22.0)


class Moment(NamedTuple):
    """A trial's end on the search's clock."""

    clock_s: float
    value: float | None
    """By the part's measure; None: the target was missed."""
    trial: ViewedTrial


def moments(part: StudyPart) -> list[Moment]:
    """Returns when each trial ended, in that order, on a clock that stops between sessions."""
    measure = facts.measure_of(part)
    trials = [t for t in part.trials if t.record.started_at and t.record.finished_at]
    clock_s = search_clock_s(trials)
    ended = [Moment(clock_s[t.run_id], measure.of(t), t) for t in trials]
    return sorted(ended, key=lambda moment: moment.clock_s)


def records(ended: list[Moment], *, is_falling: bool = True) -> list[Moment]:
    known = [moment for moment in ended if moment.value is not None]
    return facts.improving(known, lambda m: (-1 if is_falling else 1) * (m.value or 0.0))


def draw(part: StudyPart, palette: Palette) -> Sketch | None:
    measure = facts.measure_of(part)
    ended = moments(part)
    best = records(ended, is_falling=measure.is_falling)
    if not best:
        return None
    canvas = Canvas(palette, height=HEIGHT, leader=part.leader)
    panel, unit = canvas.panel, facts.time_unit(ended[-1].clock_s)
    shown = [m.value for m in ended if m.value is not None]
    spots = [Spot(m.clock_s / unit.length_s, m.value or 0.0, m.trial) for m in ended]
    new_best = {moment.trial.run_id for moment in best}
    line = [spot for spot in spots if spot.trial.run_id in new_best]
    # The best so far holds until the end of the search.
    x, y = [*(spot.x for spot in line), spots[-1].x], [*(spot.y for spot in line), line[-1].y]
    panel.plot(x, y, drawstyle="steps-post", color=palette["s1"], linewidth=2.0, gid="best")
    # With room below for the misses and above for a word.
    is_log = scale(panel.yaxis, shown)
    bottom, top = padded(shown, 0.14 if is_log else 0.16, 0.16, is_log=is_log)
    panel.set_ylim(bottom if is_log else max(0.0, bottom), top)
    scale(panel.xaxis, [])
    panel.set_xlim(0.0, 1.02 * x[-1] or 1.0)
    _draw_trials(canvas, spots, line)
    if measure.is_falling:  # A line that rises begins where the word would stand.
        _tell_first(canvas, line[0].x, best[0].clock_s)
    if len(line) > 1:
        canvas.name(panel, line[-1])
    canvas.title(panel, measure.axis)
    panel.set_xlabel(unit.label("time searched"))
    looks = {"new best": BEST}
    looks |= {"met target": HIT} if len(shown) > len(best) else {}
    looks |= {"missed": MISS} if len(shown) < len(ended) else {}
    canvas.legend(canvas.entries(looks))
    return Sketch(canvas, _alt(ended, best, measure, len(shown)))


def _draw_trials(canvas: Canvas, spots: list[Spot], best: list[Spot]) -> None:
    panel = canvas.panel
    bottom, top = panel.get_ylim()
    is_log = panel.get_yscale() == "log"
    foot = bottom * (top / bottom) ** 0.03 if is_log else bottom + 0.03 * (top - bottom)
    drawn_last = {spot.trial.run_id for spot in best}
    others = [spot for spot in spots if spot.trial.run_id not in drawn_last]
    hits = [spot for spot in others if spot.trial.record.time_to_target_s is not None]
    misses = [s._replace(y=foot) for s in others if s.trial.record.time_to_target_s is None]
    canvas.points(panel, misses, MISS)
    canvas.points(panel, hits, HIT)
    canvas.points(panel, best, BEST)
    panel.set_ylim(bottom, top)


def _tell_first(canvas: Canvas, x: float, clock_s: float) -> None:
    panel = canvas.panel
    panel.axvline(x, color=canvas.palette["muted"], linewidth=0.9, linestyle=":")
    canvas.label(
        panel,
        f"first hit after {facts.duration(clock_s)}",
        (x, 1.0),
        is_left=x > 0.5 * panel.get_xlim()[1],
        offset=(4, -1),
        xycoords=panel.get_xaxis_transform(),
        va="top",
    )


def _alt(ended: list[Moment], best: list[Moment], measure: facts.Measure, hits: int) -> str:
    (first_s, _, first), (last_s, _, last) = best[0], best[-1]
    after = facts.duration(first_s)
    start = (
        f"{hits} of {counted(len(ended), 'trial')} {measure.target.did_meet}, the first of them"
        f" ({facts.name_of(first)}, {measure.text(first)}) after {after} of search; "
    )
    end = facts.duration(ended[-1].clock_s)
    if first is last:
        better = "faster" if measure.unit else "better"
        return f"{start}none was {better} until the end, after {end}."
    came = "fell" if measure.is_falling else "rose"
    what = "time" if measure.unit else measure.name
    return (
        f"{start}the best {what} {came} to {measure.text(last)} ({facts.name_of(last)}) after"
        f" {facts.duration(last_s)}, and stayed until the end, after {end}."
    )


BEST_SO_FAR = FigureKind(
    title="Best so far",
    about="The fastest time to target, or the best metric within a time, found so far, over the"
    " time that the search took; the clock stops while no trial runs. Marks at the foot are trials"
    " that missed.",
    draw=draw,
)
