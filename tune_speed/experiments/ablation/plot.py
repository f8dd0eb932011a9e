"""An ablation as a forest plot: a row an arm, speed-ups next to differences of accuracy."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tune_speed.core.text import device_text, percent
from tune_speed.experiments.ablation.design import BASE
from tune_speed.experiments.ablation.effects import Estimate, Kind
from tune_speed.experiments.ablation.footnotes import kind_words
from tune_speed.experiments.ablation.result import GAINS, AblationResult, ArmResult, Response
from tune_speed.reporting.plot_style import COLOURS, folded, plain_ticks, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES_A_LINE = 0.2
LEAST_ROW_INCHES = 0.42
PANEL_INCHES = 3.7
NAME_INCHES = 2.6
LABEL_INCHES = 0.6
"""Ticks and label of a panel's axis."""
TITLE_INCHES = 0.6
NAME_WIDTH = 32
TITLE_WIDTH = 88
# How far beyond the outermost values an interval is drawn, in their spread; then an arrow.
WIDEST = 1.5
# Smaller spreads of values (of logarithms, for speed) are not blown up to the panel's width.
LEAST_SPREADS = {"speed": math.log(1.05), "accuracy": 0.002, "macro_f1": 0.002}
# Ratios of the ends of a log axis below which its ticks are those of a linear one.
NEAR = 4.0
# What has room side by side on a panel, in figures such as 0.005.
MOST_TICKS = 6
LADDERS = ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
"""Ticks of a power of ten, the most first."""
NOT_APPLICABLE, NO_RUNS = "not applicable here", "no runs yet"
ABSENT_COLOUR = "#808080"
# Behind a text, so that no line of the panel runs through it.
BEHIND: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}


class Row(NamedTuple):
    """One line of the plot."""

    name: str
    by_response: Mapping[Response, Estimate | None]
    absent: str
    colour: str


def plot_ablation(result: AblationResult, path: Path) -> None:
    """Writes the arms against the base; below them the other effects where there are any.

    Points are means over seeds, lines their intervals (an arrow: it extends beyond the panel),
    hollow points have none.

    Raises: StorageError if the file cannot be written.
    """
    write_figure(ablation_figure(result), path)


def ablation_figure(result: AblationResult) -> "Figure":
    # Matplotlib takes a second to import; a bare Figure draws without a window, by Agg.
    from matplotlib.figure import Figure

    groups = [
        ("against the base", [_arm_row(arm) for arm in result.arms if arm.name != BASE]),
        *_effect_groups(result),
    ]
    groups = [(words, rows) for words, rows in groups if rows]
    heights = [sum(map(_row_inches, rows)) for _, rows in groups]
    edges = TITLE_INCHES + LABEL_INCHES * len(groups)
    size = (NAME_INCHES + 2 * PANEL_INCHES, sum(heights) + edges)
    figure = Figure(figsize=size, layout="constrained")
    if groups:
        # As high as its rows: else Matplotlib makes all groups equally high, their rows not.
        panels = figure.subplots(len(groups), 2, squeeze=False, height_ratios=heights)
        score: Response = "macro_f1" if result.metric == "macro_f1" else "accuracy"
        for (words, rows), pair in zip(groups, panels, strict=True):
            _draw(pair[0], rows, "speed", label=f"speed-up, {words}")
            _draw(pair[1], rows, score, label=f"{score.replace('_', ' ')}, {words}")
            pair[1].tick_params(labelleft=False)
    figure.suptitle(folded(_title(result), TITLE_WIDTH), fontsize="medium")
    return figure


def _title(result: AblationResult) -> str:
    part = f", {result.part}" if result.part else ""
    base = result.arms[0]
    time = "" if base.epoch_s.mean is None else f"{base.epoch_s.mean:.3g} s an epoch"
    score = "" if base.accuracy.mean is None else f"accuracy {base.accuracy.mean:.4f}"
    facts = ", ".join(fact for fact in (time, score) if fact)
    text = f"{result.study}{part}, on {device_text(result.device)}; base: {facts}; "
    return f"{text}{percent(result.confidence)} intervals over up to {base.n} seeds"


def _arm_row(arm: ArmResult) -> Row:
    absent = NO_RUNS if arm.not_applicable is None else NOT_APPLICABLE
    found = {response: getattr(arm, field) for response, field in GAINS.items()}
    return Row(arm.name, found, absent if arm.n == 0 else "–", COLOURS[0])


def _effect_groups(result: AblationResult) -> list[tuple[str, list[Row]]]:
    colours: dict[Kind, str] = {"added": COLOURS[3], "main": COLOURS[2], "interaction": COLOURS[1]}
    return [
        (
            kind_words(kind, result.design),
            [Row(name, found, "–", colour) for name, found in result.effects_of(kind).items()],
        )
        for kind, colour in colours.items()
    ]


def _row_inches(row: Row) -> float:
    num_lines = len(textwrap.wrap(row.name, NAME_WIDTH)) or 1
    return max(LEAST_ROW_INCHES, INCHES_A_LINE * num_lines + 0.1)


def _draw(panel: "Axes", rows: Sequence[Row], response: Response, *, label: str) -> None:
    found = [row.by_response.get(response) for row in rows]
    is_speed = response == "speed"
    low, high = _limits([each for each in found if each is not None], response)
    if is_speed:
        panel.set_xscale("log")
    panel.set_xlim(low, high)
    heights = [_row_inches(row) for row in rows]
    centres = [sum(heights[:i]) + height / 2 for i, height in enumerate(heights)]
    panel.set_ylim(sum(heights), 0)
    panel.set_yticks(centres, [folded(row.name, NAME_WIDTH) for row in rows])
    panel.tick_params(axis="y", length=0, labelsize="small")
    panel.axvline(1 if is_speed else 0, color="black", linestyle=":", linewidth=0.8)
    for row, estimate, y in zip(rows, found, centres, strict=True):
        if estimate is None or estimate.value is None:
            style: dict[str, Any] = {"ha": "center", "va": "center", "style": "italic"}
            across = panel.get_yaxis_transform()
            style |= {"size": "small", "color": ABSENT_COLOUR, "bbox": BEHIND}
            panel.text(0.5, y, row.absent, transform=across, **style)
        else:
            value = f"{estimate.value:.2f}×" if is_speed else f"{estimate.value:+.4f}"
            _draw_estimate(panel, estimate, y, colour=row.colour, label=value)
    panel.set_xlabel(label, fontsize="small")
    panel.grid(axis="x", alpha=0.25)
    _set_ticks(panel, low, high, is_speed=is_speed)


def _draw_estimate(panel: "Axes", found: Estimate, y: float, *, colour: str, label: str) -> None:
    assert found.value is not None
    left, right = panel.get_xlim()
    if found.low is not None:
        high = math.inf if found.high is None else found.high
        ends = [max(found.low, left), min(high, right)]
        panel.plot(ends, [y, y], color=colour, lw=1.8, solid_capstyle="butt")
        arrows: dict[str, Any] = {"color": colour, "markersize": 5, "clip_on": False}
        if found.low < left:
            panel.plot(left, y, "<", **arrows)
        if high > right:
            panel.plot(right, y, ">", **arrows)
    face = "white" if found.low is None else colour
    panel.plot(found.value, y, "o", color=colour, markerfacecolor=face, markersize=5.5)
    style: dict[str, Any] = {"ha": "center", "va": "bottom", "size": "x-small", "bbox": BEHIND}
    panel.annotate(label, (found.value, y), xytext=(0, 4.5), textcoords="offset points", **style)


def _limits(found: Sequence[Estimate], response: Response) -> tuple[float, float]:
    # Two seeds give intervals a hundred times as wide as the differences between the arms.
    is_speed = response == "speed"
    scaled = [_scaled(each, is_log=is_speed) for each in found]
    values = [0.0, *(value for value, _, _ in scaled)]
    spread = max(max(values) - min(values), LEAST_SPREADS[response])
    least, most = min(values) - WIDEST * spread, max(values) + WIDEST * spread
    low = max(least, min([*values, *(end for _, end, _ in scaled)]))
    high = min(most, max([*values, *(end for _, _, end in scaled)]))
    margin = 0.12 * max(high - low, spread)
    ends = (low - margin, high + margin)
    return (math.exp(ends[0]), math.exp(ends[1])) if is_speed else ends


def _scaled(found: Estimate, *, is_log: bool) -> tuple[float, float, float]:
    assert found.value is not None
    if found.low is None:
        value = math.log(found.value) if is_log else found.value
        return (value, value, value)
    high = math.inf if found.high is None else found.high
    if not is_log:
        return (found.value, found.low, high)
    low = math.log(found.low) if found.low else -math.inf
    return (math.log(found.value), low, math.log(high) if math.isfinite(high) else high)


def _set_ticks(panel: "Axes", low: float, high: float, *, is_speed: bool) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

    panel.tick_params(axis="x", labelsize="small")
    linear = MaxNLocator(5, steps=[1, 2, 5, 10])
    if not is_speed:
        panel.xaxis.set_major_locator(linear)
        return
    near = [tick for tick in linear.tick_values(low, high) if low <= tick <= high]
    plain_ticks(panel.xaxis, FixedLocator(near if high / low < NEAR else _far_ticks(low, high)))
    panel.xaxis.set_minor_locator(NullLocator())


def _far_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    ladders = [[step * 10.0**power for power in powers for step in steps] for steps in LADDERS]
    every = range(2, len(powers) + 2)
    ladders += [[10.0**power for power in powers if power % few == 0] for few in every]
    within = [[tick for tick in ticks if low <= tick <= high] for ticks in ladders]
    return next(ticks for ticks in within if len(ticks) <= MOST_TICKS)
