"""Best time to target so far, over the time that the search took."""

from typing import NamedTuple

from tune_speed.core.text import counted
from tune_speed.reporting.figures.axes import padded, scale
from tune_speed.reporting.figures.canvas import Canvas, FigureKind, Sketch, Spot
from tune_speed.reporting.figures.facts import duration, name_of, time_s_of, time_unit
from tune_speed.reporting.figures.theme import Look, Palette
from tune_speed.reporting.study.view import StudyPart, ViewedTrial, search_clock_s

HEIGHT = 220.0
HIT = Look("o", "muted", False, 16.0)
BEST = Look("o", "s1", True, 34.0)
MISS = Look("|", "muted", False, 22.0)


class Moment(NamedTuple):
    """A trial's end on the search's clock."""

    clock_s: float
    time_s: float | None
    """Time to target; None: it was missed."""
    trial: ViewedTrial


def moments(part: StudyPart) -> list[Moment]:
    """Returns when each trial ended, in that order, on a clock that stops between sessions."""
    trials = [t for t in part.trials if t.record.started_at and t.record.finished_at]
    clock_s = search_clock_s(trials)
    ended = [Moment(clock_s[t.run_id], t.record.time_to_target_s, t) for t in trials]
    return sorted(ended, key=lambda moment: moment.clock_s)


def records(ended: list[Moment]) -> list[Moment]:
    """Returns the moments at which the best time so far fell."""
    best: list[Moment] = []
    for moment in ended:
        if moment.time_s is not None and (not best or moment.time_s < (best[-1].time_s or 0.0)):
            best.append(moment)
    return best


def draw(part: StudyPart, palette: Palette) -> Sketch | None:
    """Draws a falling step line; None if no trial met the target."""
    ended = moments(part)
    best = records(ended)
    if not best:
        return None
    canvas = Canvas(palette, height=HEIGHT, leader=part.leader)
    panel, hits = canvas.panel, [m for m in ended if m.time_s is not None]
    times = [time_s_of(moment.trial) for moment in hits]
    unit, time_axis = time_unit(ended[-1].clock_s), time_unit(max(times))
    spots = [
        Spot(m.clock_s / unit.length_s, (m.time_s or 0.0) / time_axis.length_s, m.trial)
        for m in ended
    ]
    new_best = {moment.trial.run_id for moment in best}
    line = [spot for spot in spots if spot.trial.run_id in new_best]
    # The best so far holds until the end of the search.
    x, y = [*(spot.x for spot in line), spots[-1].x], [*(spot.y for spot in line), line[-1].y]
    panel.plot(x, y, drawstyle="steps-post", color=palette["s1"], linewidth=2.0, gid="best")
    # With room below for the misses and above for a word.
    shown = [time_s / time_axis.length_s for time_s in times]
    is_log = scale(panel.yaxis, shown)
    bottom, top = padded(shown, 0.14 if is_log else 0.16, 0.16, is_log=is_log)
    panel.set_ylim(bottom if is_log else max(0.0, bottom), top)
    scale(panel.xaxis, [])
    panel.set_xlim(0.0, 1.02 * x[-1] or 1.0)
    _draw_trials(canvas, spots, line)
    _tell_first(canvas, line[0].x, best[0].clock_s)
    if len(line) > 1:
        canvas.name(panel, line[-1])
    canvas.title(panel, time_axis.label("time to target"))
    panel.set_xlabel(unit.label("time searched"))
    looks = {"new best": BEST}
    looks |= {"met target": HIT} if len(times) > len(best) else {}
    looks |= {"missed": MISS} if len(times) < len(ended) else {}
    canvas.legend(canvas.entries(looks))
    return Sketch(canvas, _alt(ended, best, len(hits)))


def _draw_trials(canvas: Canvas, spots: list[Spot], best: list[Spot]) -> None:
    """Draws the misses at the foot, then the hits, those that were the best on top."""
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
        f"first hit after {duration(clock_s)}",
        (x, 1.0),
        is_left=x > 0.5 * panel.get_xlim()[1],
        offset=(4, -1),
        xycoords=panel.get_xaxis_transform(),
        va="top",
    )


def _alt(ended: list[Moment], best: list[Moment], hits: int) -> str:
    (first_s, _, first), (last_s, _, last) = best[0], best[-1]
    start = (
        f"{hits} of {counted(len(ended), 'trial')} met the target, the first of them"
        f" ({name_of(first)}, {duration(time_s_of(first))}) after {duration(first_s)} of search; "
    )
    end = duration(ended[-1].clock_s)
    if first is last:
        return f"{start}none was faster until the end, after {end}."
    return (
        f"{start}the best time fell to {duration(time_s_of(last))} ({name_of(last)}) after"
        f" {duration(last_s)}, and stayed until the end, after {end}."
    )


BEST_SO_FAR = FigureKind(
    title="Best time so far",
    about="The fastest time to target found so far, over the time that the search took; the clock"
    " stops while no trial runs. Marks at the foot are trials that missed the target.",
    draw=draw,
)
