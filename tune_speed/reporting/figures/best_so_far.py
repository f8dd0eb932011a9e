"""Best time to target so far, over the time that the search took."""

from typing import TYPE_CHECKING, NamedTuple

from tune_speed.core.text import counted
from tune_speed.reporting.figures.axes import scale, unit_label
from tune_speed.reporting.figures.canvas import UNDER_POINTS, Canvas, FigureKind, Sketch, Spot
from tune_speed.reporting.figures.facts import is_timed, time_s_of
from tune_speed.reporting.figures.texts import duration, shortened, time_unit
from tune_speed.reporting.figures.theme import Look, Palette
from tune_speed.reporting.study.view import StudyPart, ViewedTrial, search_clock_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT = 220.0
HIT = Look("o", "muted", False, 16.0)
BEST = Look("o", "s1", True, 34.0)
MISS = Look("|", "muted", False, 22.0)
ID_WIDTH = 24


class Moment(NamedTuple):
    """A trial's end on the search's clock."""

    clock_s: float
    time_s: float | None
    """Time to target; None: it was missed."""
    trial: ViewedTrial


def moments(part: StudyPart) -> list[Moment]:
    """Returns when each trial ended, in that order, on a clock that stops between sessions."""
    trials = [trial for trial in part.trials if is_timed(trial)]
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
    unit, times = time_unit(ended[-1].clock_s), _hits(ended)
    time_axis = time_unit(max(times))
    steps = [(m.clock_s / unit.length_s, time_s_of(m.trial) / time_axis.length_s) for m in best]
    # The best so far holds until the end of the search.
    steps.append((ended[-1].clock_s / unit.length_s, steps[-1][1]))
    panel = canvas.panel
    x, y = zip(*steps, strict=True)
    panel.plot(x, y, drawstyle="steps-post", color=palette["s1"], linewidth=2.0, gid="best")
    _scale_times(panel, [time_s / time_axis.length_s for time_s in times])
    scale(panel.xaxis, [])
    panel.set_xlim(0.0, 1.02 * x[-1] or 1.0)
    _draw_trials(canvas, ended, best, unit.length_s, time_axis.length_s)
    _tell_first(canvas, best, unit.length_s)
    if len(best) > 1:
        last = best[-1]
        spot = Spot(
            last.clock_s / unit.length_s, time_s_of(last.trial) / time_axis.length_s, last.trial
        )
        canvas.name(panel, spot)
    canvas.title(panel, unit_label("time to target", time_axis))
    panel.set_xlabel(unit_label("time searched", unit))
    looks = {"new best": BEST}
    looks |= {"met target": HIT} if len(times) > len(best) else {}
    looks |= {"missed": MISS} if len(times) < len(ended) else {}
    canvas.legend(canvas.entries(looks))
    return Sketch(canvas, _alt(ended, best))


def _hits(ended: list[Moment]) -> list[float]:
    return [moment.time_s for moment in ended if moment.time_s is not None]


def _scale_times(panel: "Axes", times: list[float]) -> None:
    """Scales the upright axis, with room below for the misses and above for a word."""
    is_log = scale(panel.yaxis, times)
    low, high = min(times), max(times)
    if is_log:
        panel.set_ylim(low * (low / high) ** 0.14, high * (high / low) ** 0.16)
    else:
        room = high - low or 0.2 * high
        panel.set_ylim(max(0.0, low - 0.16 * room), high + 0.16 * room)


def _draw_trials(
    canvas: Canvas, ended: list[Moment], best: list[Moment], unit_s: float, time_unit_s: float
) -> None:
    panel = canvas.panel
    bottom, top = panel.get_ylim()
    is_log = panel.get_yscale() == "log"
    foot = bottom * (top / bottom) ** 0.03 if is_log else bottom + 0.03 * (top - bottom)
    hits = [m for m in ended if m.time_s is not None and m not in best]
    misses = [m for m in ended if m.time_s is None]
    canvas.points(panel, [Spot(m.clock_s / unit_s, foot, m.trial) for m in misses], MISS)
    for moments_, look in ((hits, HIT), (best, BEST)):
        spots = [
            Spot(m.clock_s / unit_s, time_s_of(m.trial) / time_unit_s, m.trial) for m in moments_
        ]
        canvas.points(panel, spots, look)
    panel.set_ylim(bottom, top)


def _tell_first(canvas: Canvas, best: list[Moment], unit_s: float) -> None:
    """Marks the moment of the first hit."""
    panel, x = canvas.panel, best[0].clock_s / unit_s
    panel.axvline(x, color=canvas.palette["muted"], linewidth=0.9, linestyle=":")
    is_late = x > 0.5 * panel.get_xlim()[1]
    panel.annotate(
        f"first hit after {duration(best[0].clock_s)}",
        (x, 1.0),
        xycoords=panel.get_xaxis_transform(),
        xytext=(-4 if is_late else 4, -1),
        textcoords="offset points",
        ha="right" if is_late else "left",
        va="top",
        bbox=canvas.backing(),
        zorder=UNDER_POINTS,
    )


def _alt(ended: list[Moment], best: list[Moment]) -> str:
    first, last = best[0], best[-1]
    hits = len(_hits(ended))
    start = (
        f"{hits} of {counted(len(ended), 'trial')} met the target, the first of them"
        f" ({_name(first)}, {duration(time_s_of(first.trial))}) after"
        f" {duration(first.clock_s)} of search; "
    )
    if first is last:
        return f"{start}none was faster until the end, after {duration(ended[-1].clock_s)}."
    return (
        f"{start}the best time fell to {duration(time_s_of(last.trial))} ({_name(last)}) after"
        f" {duration(last.clock_s)}, and stayed until the end, after"
        f" {duration(ended[-1].clock_s)}."
    )


def _name(moment: Moment) -> str:
    return shortened(moment.trial.record.trial_id, ID_WIDTH)


BEST_SO_FAR = FigureKind(
    title="Best time so far",
    about="The fastest time to target found so far, over the time that the search took; the clock"
    " stops while no trial runs. Marks at the foot are trials that missed the target.",
    draw=draw,
)
