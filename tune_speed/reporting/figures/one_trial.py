"""One trial's metric over training time: its run, or those with other seeds, and the target."""

from collections.abc import Sequence

from tune_speed.core.comparability import goodness
from tune_speed.core.targets import Target
from tune_speed.core.text import counted
from tune_speed.reporting.figures import facts
from tune_speed.reporting.figures.axes import draw_metric_axis, scale
from tune_speed.reporting.figures.canvas import Canvas, Sketch
from tune_speed.reporting.figures.theme import Palette

HEIGHT = 210.0
# Evaluations that are drawn as points too.
MOST_POINTS = 40

Curve = Sequence[tuple[float, float]]
"""Training clock [s] and metric at each evaluation of one run."""


def draw_curves(curves: Sequence[Curve], target: Target, palette: Palette) -> Sketch | None:
    """Draws the runs; None where none was evaluated."""
    known = [curve for curve in curves if curve]
    if not known:
        return None
    points = [point for curve in known for point in curve]
    unit = facts.time_unit(max(time_s for time_s, _ in points))
    canvas = Canvas(palette, height=HEIGHT)
    panel = canvas.panel
    line, words = draw_metric_axis(canvas, panel, [metric for _, metric in points], target)
    for curve in known:
        times = [time_s / unit.length_s for time_s, _ in curve]
        panel.plot(
            times,
            [metric for _, metric in curve],
            color=palette["s1"],
            linewidth=1.6,
            marker="o" if len(curve) <= MOST_POINTS else "",
            markersize=3.5,
        )
    scale(panel.xaxis, [])
    panel.set_xlabel(unit.label("training time"))
    canvas.legend([(line, words)])
    return Sketch(canvas, _alt(known, target))


def _alt(curves: Sequence[Curve], target: Target) -> str:
    best = max((m for curve in curves for _, m in curve), key=lambda m: goodness(m, target))
    evaluations = counted(sum(map(len, curves)), "evaluation")
    of_runs = f" of {counted(len(curves), 'run')}" if len(curves) > 1 else ""
    metric, is_best = facts.metric_words(target), target.seeks_best
    goal = "" if is_best else f", target {facts.score(target.value)}"
    return f"{evaluations}{of_runs}; best {metric} {facts.score(best)}{goal}."
