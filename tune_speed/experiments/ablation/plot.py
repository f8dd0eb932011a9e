"""An ablation as a forest plot: a row an arm or effect, speed-ups next to gains of a score."""

import math
from collections.abc import Callable, Iterator, Mapping
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

WIDTH_INCHES = 10.0
ROW_INCHES, EDGE_INCHES = 0.5, 1.2
NAME_WIDTH, TITLE_WIDTH = 32, 88
# Smaller spreads of values (of logarithms, for speed) are not blown up to the panel's width.
LEAST_SPREADS = {"speed": math.log(1.05), "accuracy": 0.002, "macro_f1": 0.002}


class Row(NamedTuple):
    """One line of the plot; a heading has no estimates."""

    name: str
    color: str
    by_response: Mapping[Response, Estimate | None]
    absent: str = ""


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
    size = (WIDTH_INCHES, ROW_INCHES * len(rows) + EDGE_INCHES)
    figure = Figure(figsize=size, layout="constrained")
    score: Response = "macro_f1" if result.metric == "macro_f1" else "accuracy"
    responses: tuple[Response, ...] = ("speed", score)
    for panel, response in zip(figure.subplots(1, 2, sharey=True), responses, strict=True):
        panel.set_ylim(len(rows) - 0.4, -0.6)
        panel.set_yticks(range(len(rows)), [folded(row.name, NAME_WIDTH) for row in rows])
        _draw(panel, rows, response)
    title = f"{result.study}{result.part and f', {result.part}'}, on {device_text(result.device)}"
    base, interval = result.arms[0], percent(result.confidence)
    title += f"; {interval} intervals over up to {base.n} seeds"
    figure.suptitle(folded(title, TITLE_WIDTH), fontsize="medium")
    return figure


def _rows(result: AblationResult) -> Iterator[Row]:
    for arm in result.arms:
        if arm.name != BASE:
            missing = "not applicable here" if arm.not_applicable is not None else "no runs yet"
            found = {response: getattr(arm, field) for response, field in GAINS.items()}
            yield Row(arm.name, COLOURS[0], found, "–" if arm.n else missing)
    for kind, color in zip(KINDS, COLOURS[1:], strict=False):
        effects = result.effects_of(kind)
        # An effect that an arm has alone is the arm's.
        if effects and (kind, result.design) != ("main", "one-at-a-time"):
            yield Row(f"{kind_words(kind, result.design)}:", color, {})
            yield from (Row(name, color, found, "–") for name, found in effects.items())


def _draw(panel: "Axes", rows: list[Row], response: Response) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    is_speed = response == "speed"
    # Of a factor whose interval begins at 0 the end lies beyond any panel.
    on_axis: Callable[[float], float] = (lambda x: math.log(max(x, 1e-300))) if is_speed else float
    values = [0.0]
    text: dict[str, Any] = {"ha": "center", "size": "small"}
    for y, row in enumerate(rows):
        found = row.by_response.get(response)
        if found is None or found.value is None:
            panel.text(0.5, y, row.absent, transform=panel.get_yaxis_transform(), **text)
            continue
        value = on_axis(found.value)
        values.append(value)
        ends = [] if found.low is None or found.high is None else [found.low, found.high]
        panel.plot([on_axis(end) for end in ends], [y] * len(ends), color=row.color)
        panel.plot(value, y, "o", color=row.color, markerfacecolor=row.color if ends else "white")
        label = f"{found.value:.2f}×" if is_speed else f"{value:+.4f}"
        panel.annotate(label, (value, y), xytext=(0, 5), textcoords="offset points", **text)
    # Two seeds give intervals a hundred times as wide as the differences between the arms.
    spread = max(max(values) - min(values), LEAST_SPREADS[response])
    panel.set_xlim(min(values) - spread, max(values) + spread)
    panel.axvline(0, color="black", linestyle=":", linewidth=0.8)
    panel.set_xlabel("speed-up" if is_speed else f"{response.replace('_', ' ')}, difference")
    panel.grid(axis="x", alpha=0.25)
    panel.tick_params(labelsize="small")
    panel.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    if is_speed:
        # The axis is one of logarithms; even steps of them are even factors.
        panel.xaxis.set_major_formatter(FuncFormatter(lambda ln, _: f"{math.exp(ln):.3g}×"))
