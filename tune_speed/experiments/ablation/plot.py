"""An ablation as a forest plot: a row an arm or effect, speed-ups next to gains of a score."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tune_speed.core.text import device_text, percent
from tune_speed.experiments.ablation.design import BASE
from tune_speed.experiments.ablation.effects import Estimate
from tune_speed.experiments.ablation.result import GAINS, KINDS, AblationResult, Response
from tune_speed.experiments.ablation.tables import kind_words
from tune_speed.reporting.plot_style import COLOURS, folded, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES_A_LINE = 0.22
PANEL_INCHES = 3.7
NAME_INCHES = 2.6
EDGE_INCHES = 1.2
"""Title, ticks and label."""
NAME_WIDTH = 32
TITLE_WIDTH = 88
# How far beyond the outermost values an interval is drawn, in their spread.
WIDEST = 1.5
# Smaller spreads of values (of logarithms, for speed) are not blown up to the panel's width.
LEAST_SPREADS = {"speed": math.log(1.05), "accuracy": 0.002, "macro_f1": 0.002}
# Behind a text, so that no line of the panel runs through it.
BEHIND: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}


class Row(NamedTuple):
    """One line of the plot; a heading has no estimates."""

    name: str
    by_response: Mapping[Response, Estimate | None]
    absent: str
    color: str


def plot_ablation(result: AblationResult, path: Path) -> None:
    """Writes the arms against the base; below them main effects and interactions.

    Points are means over seeds, lines their intervals (none below a hollow point); an interval may
    reach beyond the panel.

    Raises: StorageError if the file cannot be written.
    """
    write_figure(ablation_figure(result), path)


def ablation_figure(result: AblationResult) -> "Figure":
    # Matplotlib takes a second to import; a bare Figure draws without a window, by Agg.
    from matplotlib.figure import Figure

    rows = list(_rows(result))
    lines = [len(textwrap.wrap(row.name, NAME_WIDTH)) + 1 for row in rows]
    size = (NAME_INCHES + 2 * PANEL_INCHES, INCHES_A_LINE * sum(lines) + EDGE_INCHES)
    figure = Figure(figsize=size, layout="constrained")
    score: Response = "macro_f1" if result.metric == "macro_f1" else "accuracy"
    responses: tuple[Response, ...] = ("speed", score)
    for panel, response in zip(figure.subplots(1, 2, sharey=True), responses, strict=True):
        centres = [sum(lines[:i]) + num / 2 for i, num in enumerate(lines)]
        panel.set_ylim(max(1, sum(lines)), 0)
        panel.set_yticks(centres, [folded(row.name, NAME_WIDTH) for row in rows])
        _draw(panel, rows, centres, response)
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


def _rows(result: AblationResult) -> Iterator[Row]:
    for arm in result.arms:
        if arm.name != BASE:
            missing = "not applicable here" if arm.not_applicable is not None else "no runs yet"
            found = {response: getattr(arm, field) for response, field in GAINS.items()}
            yield Row(arm.name, found, "–" if arm.n else missing, COLOURS[0])
    for kind, color in zip(KINDS, COLOURS[1:], strict=False):
        effects = result.effects_of(kind)
        # An effect that an arm has alone is the arm's.
        if effects and (kind, result.design) != ("main", "one-at-a-time"):
            yield Row(f"{kind_words(kind, result.design)}:", {}, "", color)
            yield from (Row(name, found, "–", color) for name, found in effects.items())


def _draw(panel: "Axes", rows: Sequence[Row], centres: Sequence[float], response: Response) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    is_speed = response == "speed"
    found = [_on_axis(row.by_response.get(response), is_log=is_speed) for row in rows]
    panel.set_xlim(*_limits([each for each in found if each], LEAST_SPREADS[response]))
    panel.axvline(0, color="black", linestyle=":", linewidth=0.8)
    text: dict[str, Any] = {"ha": "center", "size": "small", "bbox": BEHIND}
    for row, ends, y in zip(rows, found, centres, strict=True):
        if ends is None:
            panel.text(
                0.5, y, row.absent, transform=panel.get_yaxis_transform(), va="center", **text
            )
            continue
        value, low, high = ends
        left, right = panel.get_xlim()
        drawn = [max(low, left), min(high, right)]
        panel.plot(drawn, [y, y], color=row.color, lw=1.8, solid_capstyle="butt")
        face = row.color if low < high else "white"
        panel.plot(value, y, "o", color=row.color, markerfacecolor=face, markersize=5.5)
        label = f"{math.exp(value):.2f}×" if is_speed else f"{value:+.4f}"
        panel.annotate(label, (value, y), xytext=(0, 4.5), textcoords="offset points", **text)
    panel.set_xlabel("speed-up" if is_speed else f"{response.replace('_', ' ')}, difference")
    panel.grid(axis="x", alpha=0.25)
    panel.tick_params(labelsize="small")
    panel.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    if is_speed:
        # The axis is one of logarithms; even steps of them are even factors.
        panel.xaxis.set_major_formatter(FuncFormatter(lambda ln, _: f"{math.exp(ln):.3g}×"))


Ends = tuple[float, float, float]
"""Value, and the ends of its interval; the value thrice without one. Of speed, logarithms."""


def _on_axis(found: Estimate | None, *, is_log: bool) -> Ends | None:
    if found is None or found.value is None:
        return None
    ends = [found.value, found.low, found.high]
    if found.low is None:
        ends = [found.value] * 3
    scaled = [math.inf if end is None else _ln(end) if is_log else end for end in ends]
    return (scaled[0], scaled[1], scaled[2])


def _ln(value: float) -> float:
    return math.log(value) if value else -math.inf


def _limits(found: Sequence[Ends], least_spread: float) -> tuple[float, float]:
    # Two seeds give intervals a hundred times as wide as the differences between the arms.
    values = [0.0, *(value for value, _, _ in found)]
    spread = max(max(values) - min(values), least_spread)
    low = max(min(values) - WIDEST * spread, min([*values, *(low for _, low, _ in found)]))
    high = min(max(values) + WIDEST * spread, max([*values, *(high for *_, high in found)]))
    margin = 0.12 * max(high - low, spread)
    return low - margin, high + margin
