"""What the batch size and the precision do to speed: samples a second, and time of a step."""

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tune_speed.core.records import TrialRecord
from tune_speed.core.text import counted
from tune_speed.reporting.figures.axes import scale
from tune_speed.reporting.figures.canvas import DASHES, SERIES, Canvas, FigureKind, Palette, Sketch
from tune_speed.reporting.figures.facts import number, shortened
from tune_speed.reporting.figures.front import MARKERS
from tune_speed.reporting.study.view import StudyPart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT = 320.0
MOST_LINES = 8
MOST_TICKS = 6
NAME_WIDTH = 30


class Speed(NamedTuple):
    """How fast one run's steps were."""

    line: str
    """Precision, and the model where there are several."""
    batch: int
    """Samples of an optimizer step, over all devices."""
    step_ms: float
    """Time of an optimizer step [ms]."""

    @property
    def samples_per_s(self) -> float:
        return 1000 * self.batch / self.step_ms


def speeds(part: StudyPart) -> list[Speed]:
    records = [trial.record for trial in (*part.trials, *part.confirmed)]
    has_models = len({_model(record) for record in records}) > 1
    found = []
    for record in records:
        precision = str(record.recipe.get("precision", "fp32"))
        line = f"{_model(record)}, {precision}" if has_models else precision
        devices = record.recipe.get("devices")
        devices = devices if isinstance(devices, int) else 1
        found += [
            Speed(line, run.batch_size * (run.accumulation_steps or 1) * devices, run.step_time_ms)
            for run in record.runs
            if run.step_time_ms and run.batch_size
        ]
    return found


def draw(part: StudyPart, palette: Palette) -> Sketch | None:
    from matplotlib.ticker import NullLocator

    found = speeds(part) if part.trials or part.certified else []
    if len({(speed.line, speed.batch) for speed in found}) < 2:
        return None
    canvas = Canvas(palette, height=HEIGHT, rows=2, share_x=True)
    lines = list(dict.fromkeys(speed.line for speed in found))[:MOST_LINES]
    shown = [speed for speed in found if speed.line in lines]
    rates = [("samples per second", "samples_per_s"), ("time of a step [ms]", "step_ms")]
    handles = []
    for panel, (title, field) in zip(canvas.panels, rates, strict=True):
        handles = [
            _draw_line(panel, [s for s in shown if s.line == line], field, place, palette)
            for place, line in enumerate(lines)
        ]
        scale(panel.yaxis, [getattr(speed, field) for speed in shown])
        canvas.title(panel, title)
        if panel.get_yscale() == "linear":
            panel.set_ylim(bottom=0.0)
    batches = sorted({speed.batch for speed in shown})
    ticks, lowest = batches[:: -(-len(batches) // MOST_TICKS)], canvas.panels[-1]
    lowest.set_xscale("log", base=2)
    lowest.xaxis.set_minor_locator(NullLocator())
    lowest.set_xticks(ticks, [str(batch) for batch in ticks])
    lowest.set_xlabel("effective batch size")
    named = [shortened(line, NAME_WIDTH) for line in lines]
    canvas.legend(list(zip(handles, named, strict=True)))
    return Sketch(canvas, _alt(shown))


def _model(record: TrialRecord) -> str:
    model = record.recipe.get("model", "")
    return str(next(iter(model), "")) if isinstance(model, Mapping) else str(model)


def medians(found: Sequence[Speed], field: str) -> dict[int, tuple[float, float, float]]:
    """Returns by batch size the least, the median and the greatest value of a field."""
    groups: dict[int, list[float]] = {}
    for speed in sorted(found, key=lambda speed: speed.batch):
        groups.setdefault(speed.batch, []).append(getattr(speed, field))
    return {batch: (min(v), statistics.median(v), max(v)) for batch, v in groups.items()}


def _draw_line(
    panel: "Axes", found: Sequence[Speed], field: str, place: int, palette: Palette
) -> Any:
    groups, colour = medians(found, field), palette[SERIES[place]]
    low, middle, high = zip(*groups.values(), strict=True)
    panel.vlines(list(groups), low, high, color=colour, linewidth=1.0)
    (line,) = panel.plot(
        list(groups),
        middle,
        DASHES[place % len(DASHES)],
        color=colour,
        linewidth=1.6,
        marker=MARKERS[place],
        markersize=5.5,
        markeredgecolor=palette["surface"],
        markeredgewidth=0.8,
    )
    return line


def _alt(found: Sequence[Speed]) -> str:
    parts = []
    for line in dict.fromkeys(speed.line for speed in found):
        groups = medians([speed for speed in found if speed.line == line], "samples_per_s")
        batch, (_, rate, _) = max(groups.items(), key=lambda item: item[1][1])
        parts.append(
            f"{shortened(line, NAME_WIDTH)} is fastest at {number(rate)} samples per second, with"
            f" an effective batch size of {batch} (of {counted(len(groups), 'size')})"
        )
    return f"{'; '.join(parts)}."


STEP_TIME = FigureKind(
    title="Speed by batch size and precision",
    about="Samples a second, and the time of an optimizer step. Points are medians over the runs;"
    " lines through them go from the least to the greatest.",
    draw=draw,
)
