"""Certified times next to the estimates they came from."""

import math
from typing import NamedTuple

from tune_speed.core.comparability import target_of
from tune_speed.core.stats import RunStatistics, median_interval_s
from tune_speed.core.text import counted
from tune_speed.reporting.figures.axes import padded, scale, spans_decade
from tune_speed.reporting.figures.canvas import Canvas, FigureKind, Look, Palette, Sketch, Spot
from tune_speed.reporting.figures.facts import duration, estimates_of, name_of, time_unit
from tune_speed.reporting.study.view import StudyPart, ViewedTrial

ROW_HEIGHT, FRAME_HEIGHT = 36.0, 40.0
ESTIMATE = Look("D", "s2", False, 24.0)
CERTIFIED = Look("o", "s1", True, 40.0)
NEVER = Look(">", "s1", False, 40.0)
# Room next to the points, as a share of the axis; on the right for times without an end.
LEFT = 0.04


class Pair(NamedTuple):
    """A trial's estimate and what its certificate says."""

    trial: ViewedTrial
    estimate_s: float | None
    """None: the search saw it miss."""
    median_s: float | None
    """Median over fresh seeds, misses infinite; None: it is infinite."""
    low_s: float
    """Lower end of its interval; may be infinite."""
    high_s: float
    hits: int
    n: int


def pairs(part: StudyPart) -> list[Pair]:
    """Returns the certified trials with their estimates, the best certified time first."""
    estimates = estimates_of(part)
    found = []
    for trial in [trial for trial in part.confirmed if trial.record.runs]:
        runs, estimate = RunStatistics.of(trial.record), estimates.get(trial.run_id)
        low, high, _ = median_interval_s(runs.times_s)
        estimate_s = None if estimate is None else estimate.record.time_to_target_s
        found.append(Pair(trial, estimate_s, runs.median_s, low, high, runs.hits, runs.n))
    return sorted(found, key=lambda pair: (pair.median_s or math.inf, pair.estimate_s or math.inf))


def draw(part: StudyPart, palette: Palette) -> Sketch | None:
    found = pairs(part)
    times = [t for p in found for t in (p.estimate_s, p.median_s, p.low_s, p.high_s)]
    finite = [time_s for time_s in times if time_s is not None and math.isfinite(time_s)]
    if not finite:
        return None
    canvas = Canvas(palette, height=FRAME_HEIGHT + ROW_HEIGHT * len(found))
    panel, unit = canvas.panel, time_unit(max(finite))
    shown = [time_s / unit.length_s for time_s in finite]
    is_log = spans_decade(shown)
    linear = (max(0.0, min(shown) - LEFT * max(shown)), max(shown) * (1 + 2 * LEFT))
    limits = padded(shown, LEFT, 2 * LEFT, is_log=True) if is_log else linear
    scale(panel.xaxis, limits if is_log else [])
    panel.set_xlim(*limits)
    panel.set_ylim(len(found) - 0.35, -0.75)
    panel.set_yticks([])
    for row, pair in enumerate(found):
        _draw_row(canvas, pair, row, unit.length_s)
    is_best = part.target.seeks_best
    panel.set_xlabel(unit.label("training time" if is_best else "time to target"))
    looks = {"estimate": ESTIMATE, "certified median, interval": CERTIFIED}
    if any(pair.median_s is None for pair in found):
        looks["missed in half of the runs or more"] = NEVER
    canvas.legend(canvas.entries(looks))
    told = "; ".join(map(_told, found))
    return Sketch(canvas, f"{counted(len(found), 'certified trial')}: {told}.")


def _draw_row(canvas: Canvas, pair: Pair, row: int, unit_s: float) -> None:
    panel, right = canvas.panel, canvas.panel.get_xlim()[1]
    low, high = (min(end / unit_s, right) for end in (pair.low_s, pair.high_s))
    panel.hlines([row], [low], [high], color=canvas.palette["s1"], linewidth=2.0, gid="interval")
    median = right if pair.median_s is None else pair.median_s / unit_s
    look = NEVER if pair.median_s is None else CERTIFIED
    canvas.points(panel, [Spot(median, row, pair.trial)], look)
    if pair.estimate_s is not None:
        canvas.points(panel, [Spot(pair.estimate_s / unit_s, row, pair.trial)], ESTIMATE)
    panel.annotate(
        f"{name_of(pair.trial)}: {pair.hits} of {counted(pair.n, 'run')}"
        f" {target_of(pair.trial.record.workload).did_meet}",
        (0.0, row),
        xycoords=panel.get_yaxis_transform(),
        xytext=(0, 7),
        textcoords="offset points",
    )


def _told(pair: Pair) -> str:
    estimate = "a miss" if pair.estimate_s is None else duration(pair.estimate_s)
    median = "no median" if pair.median_s is None else f"a median of {duration(pair.median_s)}"
    name, hits = name_of(pair.trial), f"{pair.hits} of {counted(pair.n, 'run')} hit"
    return f"{name} was estimated as {estimate} and has {median}, {hits}"


CERTIFIED_TIMES = FigureKind(
    title="Certified against estimated",
    about="Each trial's estimate from the search, and the median of its runs with fresh seeds, with"
    " its interval; an interval that goes to the right edge has no upper end.",
    draw=draw,
)
