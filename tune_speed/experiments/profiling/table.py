"""A profile as tables for a terminal."""

from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tune_speed.core.text import printable
from tune_speed.experiments.profiling.result import ProfileResult
from tune_speed.experiments.profiling.rows import advice_texts, phase_rows, rate_rows, sentences

BAR_CHARACTERS = 30
ABSENT = "–"


def as_renderables(found: ProfileResult) -> tuple[RenderableType, ...]:
    """Returns heading, phases, rates, what they mean, and advice."""
    return (
        Text(printable(title(found)), style="italic"),
        _phases(found),
        _rates(found),
        _lines(sentences(found), style="dim"),
        _lines([f"advice: {text}" for text in advice_texts(found)]),
    )


def title(found: ProfileResult) -> str:
    """Returns what was profiled, how, and where."""
    batch = f"{found.batch_size} × {found.accumulation_steps}"
    size = f"{found.image_height_pixels}x{found.image_width_pixels} pixels"
    return (
        f"{found.name}: {found.workload_name} on {found.device}; {found.precision}, batches of"
        f" {batch} at {size}, loader {found.loader}"
    )


def _phases(found: ProfileResult) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in (("phase", "left"), ("[ms]", "right"), ("share", "right"), ("", "left")):
        table.add_column(Text(name), justify="right" if justify == "right" else "left")
    for row in phase_rows(found):
        if row.ms is None or row.share is None:
            table.add_row(row.words, ABSENT, ABSENT, "could not be measured")
            continue
        bar = "█" * round(BAR_CHARACTERS * row.share)
        table.add_row(row.words, f"{row.ms:.3f}", f"{row.share:.1%}", bar)
    return table


def _rates(found: ProfileResult) -> Table:
    rows = rate_rows(found)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in rows[0]:
        table.add_column(Text(name), justify="left" if name == "rate" else "right")
    for row in rows:
        table.add_row(*(_shown(value) for value in row.values()))
    return table


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value) if value else ABSENT


def _lines(texts: list[str], *, style: str = "") -> RenderableType:
    return Group(*(Text(printable(text), style=style) for text in texts), Text())
