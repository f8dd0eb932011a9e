"""Metrics over training time: of the finalists, the leader on top, and of one trial."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tune_speed.core.comparability import goodness
from tune_speed.core.records import RunResult, ended_as
from tune_speed.core.targets import Target
from tune_speed.core.text import counted
from tune_speed.reporting.figures import facts
from tune_speed.reporting.figures.axes import draw_metric_axis, scale
from tune_speed.reporting.figures.canvas import (
    DASHES,
    SERIES,
    Canvas,
    FigureKind,
    Look,
    Palette,
    Sketch,
    Spot,
)
from tune_speed.reporting.study.view import StudyPart, ViewedTrial

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT = 236.0
# One for each colour: a palette has eight series.
MOST = 8
# Trials that missed the target are drawn only where there are fewer hits than this.
MOST_WITH_MISSES = 4
# How much longer the longest curve is than the shortest where the time's axis is logarithmic.
LOG_FROM = 4.0
ID_WIDTH = 14


class Finalist(NamedTuple):
    """A trial with its curve, and the runs that certified it."""

    trial: ViewedTrial
    certified: tuple[RunResult, ...]

    @property
    def runs(self) -> list[RunResult]:
        """The trial's last run, then those that certified it."""
        return [self.trial.record.runs[-1], *self.certified]


def finalists(part: StudyPart) -> list[Finalist]:
    """Returns the part's trials that have curves, the best first, and at most MOST of them."""
    target = part.target

    def order(trial: ViewedTrial) -> tuple[bool, float]:
        time_s = trial.record.time_to_target_s
        nearest = -goodness(_nearest(trial, target), target)
        return (time_s is None, nearest if time_s is None else time_s)

    estimates = [trial for trial in part.trials if _is_curve(trial, target)]
    shown, origins = {trial.run_id for trial in estimates}, facts.estimates_of(part)
    seeds: dict[str, tuple[RunResult, ...]] = {}
    lone = []
    for certified in [trial for trial in part.confirmed if _is_curve(trial, target)]:
        origin = origins.get(certified.run_id)
        if origin is None or origin.run_id not in shown:
            lone.append(certified)
        else:
            seeds[origin.run_id] = seeds.get(origin.run_id, ()) + tuple(
                run for run in certified.record.runs if _is_whole(run, target)
            )
    ordered = sorted([*estimates, *lone], key=order)
    hits = sum(trial.record.time_to_target_s is not None for trial in ordered)
    found = ordered[: min(MOST, max(hits, MOST_WITH_MISSES))]
    return [Finalist(trial, seeds.get(trial.run_id, ())) for trial in found]


def draw(part: StudyPart, palette: Palette) -> Sketch | None:
    found = finalists(part)
    if not found:
        return None
    canvas = Canvas(palette, height=HEIGHT, leader=part.leader)
    panel, target = canvas.panel, part.target
    lines, runs = [], [run for finalist in found for run in finalist.runs]
    unit = facts.time_unit(max(run.evaluations[-1].train_s for run in runs))
    is_log = _scale_time(panel, runs, unit.length_s)
    # The leader last, so that it lies on top.
    for place, finalist in reversed(list(enumerate(found))):
        role, dash = SERIES[place], DASHES[place % len(DASHES)]
        own, *seeds = (_curve(r, target, unit.length_s, is_log=is_log) for r in finalist.runs)
        for seed in seeds:
            panel.plot(*seed, color=palette[role], linewidth=0.7, gid="seed")
        width = 1.3 if place else 2.8
        (line,) = panel.plot(*own, dash, color=palette[role], linewidth=width, gid="finalist")
        record, time_s = finalist.trial.record, finalist.trial.record.time_to_target_s
        seeded = f" +{len(seeds)}" if seeds else ""
        outcome = ended_as(record) if time_s is None else facts.duration(time_s)
        lines.append((line, f"{facts.name_of(finalist.trial, ID_WIDTH)}{seeded}, {outcome}"))
        look = Look("o", role, True, 20.0 if place else 44.0)
        canvas.points(panel, _crossing(finalist, target, unit.length_s), look)
    metrics = [metric for run in runs for _, metric in run.measured(target.metric)]
    goal = draw_metric_axis(canvas, panel, metrics, target)
    panel.set_xlabel(unit.label("training time"))
    canvas.legend([*lines[::-1], goal])
    return Sketch(canvas, _alt(found, target))


def _scale_time(panel: "Axes", runs: Sequence[RunResult], unit_s: float) -> bool:
    # On a linear axis the curves of short runs next to one long one would be a vertical line.
    ends = [run.evaluations[-1].train_s / unit_s for run in runs]
    moments = ([e.train_s for e in run.evaluations if e.step > 0] for run in runs)
    first = [time_s / unit_s for times_s in moments for time_s in times_s if time_s > 0]
    if max(ends) < LOG_FROM * min(ends):
        scale(panel.xaxis, [])
        panel.set_xlim(0.0, 1.03 * max(ends))
        return False
    # A decade at least: `scale` makes shorter axes linear.
    limits = (0.9 * min(first), max(10 * min(first), 1.05 * max(ends)))
    scale(panel.xaxis, limits)
    panel.set_xlim(*limits)
    return True


def _is_curve(trial: ViewedTrial, target: Target) -> bool:
    return trial.has_curve and any(_is_whole(run, target) for run in trial.record.runs[-1:])


def _is_whole(run: RunResult, target: Target) -> bool:
    return len(run.measured(target.metric)) > 1


def _curve(
    run: RunResult, target: Target, unit_s: float, *, is_log: bool
) -> tuple[list[float], list[float]]:
    # The start, at 0 s, has no place on a logarithmic axis.
    shown = [
        (e, metric) for e, metric in run.measured(target.metric) if e.train_s > 0 or not is_log
    ]
    return [e.train_s / unit_s for e, _ in shown], [metric for _, metric in shown]


def _nearest(trial: ViewedTrial, target: Target) -> float:
    metrics = [metric for _, metric in trial.record.runs[-1].measured(target.metric)]
    return max(metrics, key=lambda metric: goodness(metric, target))


def _crossing(finalist: Finalist, target: Target, unit_s: float) -> list[Spot]:
    time_s = finalist.trial.record.time_to_target_s
    if time_s is None:
        return []
    seen = finalist.trial.record.runs[-1].measured(target.metric)
    _, metric = min(seen, key=lambda each: abs(each[0].train_s - time_s))
    return [Spot(time_s / unit_s, metric, finalist.trial)]


def _alt(found: Sequence[Finalist], target: Target) -> str:
    first = found[0].trial
    peak, metric = _nearest(first, target), facts.metric_words(target)
    name = facts.name_of(first, ID_WIDTH)
    time_s = first.record.time_to_target_s
    if target.seeks_best and time_s is not None:
        reached = f"with {metric} {facts.score(peak)} after {facts.duration(time_s)} of training"
        return f"{name} leads, {reached}. {_counts(found)}."
    lead = (
        f"{name} leads: it met the target {metric} {facts.score(target.value)} after"
        f" {facts.duration(time_s)} of training"
        if time_s is not None
        else f"None met the target {metric} {facts.score(target.value)}; {name} came nearest, with"
        f" {facts.score(peak)}"
    )
    return f"{lead}. {_counts(found)}."


def _counts(found: Sequence[Finalist]) -> str:
    seeds = sum(len(finalist.certified) for finalist in found)
    return f"{counted(len(found), 'curve')} of trials, {counted(seeds, 'curve')} of other seeds"


CURVES = FigureKind(
    title="Learning curves of the finalists",
    about="The target's metric over training time. The thick line is the leader; thin lines of the"
    " same colour are the runs with other seeds that certified it (their number follows the +).",
    draw=draw,
)


TRIAL_HEIGHT = 210.0
# Evaluations that are drawn as points too.
MOST_POINTS = 40

Curve = Sequence[tuple[float, float]]
"""Training clock [s] and metric at each evaluation of one run."""


def draw_curves(curves: Sequence[Curve], target: Target, palette: Palette) -> Sketch | None:
    known = [curve for curve in curves if curve]
    if not known:
        return None
    points = [point for curve in known for point in curve]
    unit = facts.time_unit(max(time_s for time_s, _ in points))
    canvas = Canvas(palette, height=TRIAL_HEIGHT)
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
    return Sketch(canvas, _alt_of_trial(known, target))


def _alt_of_trial(curves: Sequence[Curve], target: Target) -> str:
    best = max((m for curve in curves for _, m in curve), key=lambda m: goodness(m, target))
    evaluations = counted(sum(map(len, curves)), "evaluation")
    of_runs = f" of {counted(len(curves), 'run')}" if len(curves) > 1 else ""
    metric, is_best = facts.metric_words(target), target.seeks_best
    goal = "" if is_best else f", target {facts.score(target.value)}"
    return f"{evaluations}{of_runs}; best {metric} {facts.score(best)}{goal}."
