"""A profile as rows, for tables and CSV, its advice as sentences, and a picture of it.

The picture has the phases of a step as stacked bars, and the roofline next to them.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from tune_speed.core.text import ABSENT, device_text, fixed, printable
from tune_speed.experiments.profiling.result import Advice, Bounds, ProfileResult
from tune_speed.reporting.plot_style import COLOURS, folded, log_scales, write_figure
from tune_speed.reporting.table import Column, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORDS: dict[str, str] = {
    "data_wait": "waiting for data",
    "host_to_device": "copying to the device",
    "forward": "forward",
    "backward": "backward",
    "forward_backward": "recorded step",
    "optimizer": "optimizer",
    "sync": "averaging gradients",
    "loop": "the loop itself",
}
RARE = ("forward_backward", "sync")
NOTHING = "nothing stands out: no phase takes a share of which a change of the recipe is known"


class PhaseRow(NamedTuple):
    """A phase of a step."""

    phase: str
    words: str
    ms: float | None
    share: float | None
    """Of the sum of all, averaging included."""


def phase_rows(found: ProfileResult) -> list[PhaseRow]:
    ms_of = {phase: getattr(found.times, f"{phase}_ms") for phase in WORDS}
    whole_ms = sum(ms or 0.0 for ms in ms_of.values())
    return [
        PhaseRow(phase, WORDS[phase], ms, None if ms is None else ms / whole_ms)
        for phase, ms in ms_of.items()
        if ms != 0.0 or phase not in RARE
    ]


def ms_text(ms: float) -> str:
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def csv_rows(found: ProfileResult) -> list[dict[str, Any]]:
    step_ms = round(found.times.step_ms, 3)
    return [
        {
            "phase": row.phase,
            "ms": None if row.ms is None else round(row.ms, 3),
            "share": None if row.share is None else round(row.share, 4),
            "step_ms": step_ms,
        }
        for row in phase_rows(found)
    ]


def rate_rows(found: ProfileResult) -> list[dict[str, Any]]:
    rates, work, bounds = found.rates, found.work, found.bounds

    def row(name: str, rate: str, needs: str, bound: str) -> dict[str, Any]:
        least_ms = getattr(bounds, bound, None)
        least_ms = None if least_ms is None else round(least_ms, 3)
        return {"rate": name, "measured": rate, "a step": needs, "at least [ms]": least_ms}

    gflop = f"{work.gflop:.4g} GFLOP" if work.gflop else ""
    needs = {found.precision: (gflop, "compute_bound_ms")}
    rows = [
        row(f"matrix products, {name}", f"{rate:.3g} TFLOP/s", *needs.get(name, ("", "")))
        for name, rate in rates.matrix_tflop_per_s.items()
    ]
    moved, memory = f"about {work.moved_mib:,.0f} MiB", f"{rates.memory_gb_per_s:.3g} GB/s"
    rows.append(row("copies in memory", memory, moved, "memory_bound_ms"))
    if (host := rates.host_to_device_gb_per_s) is not None:
        copied = f"{work.copied_mib:,.2f} MiB"
        rows.append(row("copies from the host", f"{host:.3g} GB/s", copied, "host_bound_ms"))
    return rows


def sentences(found: ProfileResult) -> list[str]:
    times, bounds = found.times, found.bounds
    spread = f"{ms_text(times.step_low_ms)} to {ms_text(times.step_high_ms)}"
    lines = [
        f"A step as it runs takes {ms_text(times.step_ms)} ({spread} by blocks, {times.num_steps}"
        f" steps): {_difference(found)}.",
    ]
    if times.idle_ms is not None:
        idle = f"{ms_text(times.idle_ms)} of it ({times.idle_ms / times.step_ms:.1%})"
        is_cpu = found.device_type == "cpu"
        lines.append(
            f"Threads waited {idle} for a core."
            if is_cpu
            else f"The device did nothing for {idle}."
        )
    if times.launch_frac is not None:
        lines.append(
            f"The host was busy launching for {times.launch_frac:.0%} of forward, backward and"
            " optimizer; near 100% the device waits for it."
        )
    if bounds is not None:
        what = {"compute": "arithmetic", "memory": "memory"}[bounds.binding]
        lines.append(
            f"{bounds.achieved_tflop_per_s:.3g} TFLOP/s, {bounds.peak_frac:.0%} of the measured"
            f" matrix rate, at {bounds.intensity_flop_per_byte:.3g} FLOP a byte: of both bounds"
            f" {what} binds, and the larger is {bounds.roof_frac:.0%} of a step."
        )
    lines += [f"`{field}`: auto, found {value}." for field, value in found.resolved.items()]
    if found.devices > 1:
        lines.append(
            f"One of {found.devices} devices was profiled; averaging gradients was measured apart,"
            " without the backward behind which part of it hides."
        )
    if found.device_type == "cpu":
        lines.append("Nothing is copied to the device: it is the host.")
    elif found.times.host_to_device_ms == 0:
        lines.append(f"Nothing was copied from the host: the loader is `{found.loader}`.")
    return lines


def _difference(found: ProfileResult) -> str:
    times = found.times
    frac = times.overlap_ms / times.step_ms
    if frac < 0:
        return f"the phases' sum is {-frac:.1%} less, by the machine's unrest"
    of_it = (
        "by the borders' cost or the machine's unrest"
        if found.device_type == "cpu"
        else "which overlap hides in steps as they run, or borders cost"
    )
    return f"the phases' sum is {ms_text(times.overlap_ms)} ({frac:.1%}) more, {of_it}"


def advice_text(advice: Advice) -> str:
    changes = ", ".join(f"`{c.field}` {c.before} → {c.after}" for c in advice.changes)
    said = ": ".join(filter(None, [advice.because, changes]))
    return "; ".join(filter(None, [said, advice.hint]))


def advice_texts(found: ProfileResult) -> list[str]:
    return [advice_text(advice) for advice in found.advice] or [NOTHING]


BAR_CHARACTERS = 30


def as_renderables(found: ProfileResult) -> tuple[RenderableType, ...]:
    return (
        Text(printable(title(found)), style="italic"),
        _phases(found),
        Table.of_rows(rate_rows(found), left=["rate"]),
        _lines(sentences(found), style="dim"),
        _lines([f"advice: {text}" for text in advice_texts(found)]),
    )


def title(found: ProfileResult) -> str:
    batch = f"{found.batch_size} × {found.accumulation_steps}"
    size = f"{found.image_height_pixels}x{found.image_width_pixels} pixels"
    return (
        f"{found.name}: {found.workload_name} on {device_text(found.device)}; {found.precision},"
        f" batches of {batch} at {size}, loader {found.loader}"
    )


def _phases(found: ProfileResult) -> Table:
    columns = (Column("phase", is_left=True), Column("[ms]"), Column("share"), Column("", True))
    rows = [
        (row.words, fixed(row.ms, 3), f"{row.share:.1%}", "█" * round(BAR_CHARACTERS * row.share))
        if row.share is not None
        else (row.words, ABSENT, ABSENT, "could not be measured")
        for row in phase_rows(found)
    ]
    return Table(columns, rows)


def _lines(texts: list[str], *, style: str = "") -> RenderableType:
    return Group(*(Text(printable(text), style=style) for text in texts), Text())


INCHES = (10.0, 5.4)
TITLE_WIDTH = 108
# Pieces that have room below the panels.
MOST_ADVICE = 3
PHASE_COLOURS = dict(zip(WORDS, [COLOURS[i] for i in (1, 4, 5, 0, 0, 2, 3, 6)], strict=True))
PLAIN_COLOUR = "#909090"
DARK = {COLOURS[0], COLOURS[1], COLOURS[2]}
# How far the roof is drawn beyond its ridge and the recipe, as a factor.
BEYOND = 8.0
LEAST_LABEL = 0.1
"""Share of the longest bar from which a phase has room for its figure."""
POINTS = 200


def plot_profile(found: ProfileResult, path: Path) -> None:
    """Raises: StorageError if the file cannot be written."""
    write_figure(profile_figure(found), path)


def profile_figure(found: ProfileResult) -> "Figure":
    # Matplotlib takes a second to import; a bare Figure draws without a window, by Agg.
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, layout="constrained")
    lines = (folded(part, TITLE_WIDTH) for part in title(found).split("; ", 1))
    figure.suptitle("\n".join(lines), fontsize="medium", x=0.01, ha="left")
    bounds = found.bounds
    columns = 1 if bounds is None else 2
    panels = figure.subplots(1, columns, squeeze=False, width_ratios=(1.0, 1.25)[:columns])[0]
    _draw_phases(panels[0], found)
    if bounds is not None:
        _draw_roofline(panels[1], found, bounds)
    advice = (f"advice: {text}" for text in advice_texts(found)[:MOST_ADVICE])
    lines = (folded(text, TITLE_WIDTH + 12) for text in advice)
    figure.supxlabel("\n".join(lines), fontsize="small", x=0.01, ha="left")
    return figure


def _draw_phases(panel: "Axes", found: ProfileResult) -> None:
    rows, times = [row for row in phase_rows(found) if row.ms], found.times
    tallest_ms = max(sum(row.ms or 0.0 for row in rows), times.step_high_ms)
    bottom_ms = 0.0
    for row in rows:
        _stack(panel, row, bottom_ms, tallest_ms)
        bottom_ms += row.ms or 0.0
    panel.bar(1, times.step_ms, width=0.6, color=PLAIN_COLOUR, label="a step as it runs")
    spread = ([times.step_ms - times.step_low_ms], [times.step_high_ms - times.step_ms])
    label = "fastest to slowest block"
    panel.errorbar([1.36], [times.step_ms], spread, fmt="none", ecolor="black", label=label)
    style: dict[str, Any] = {"ha": "center", "va": "bottom", "size": "small"}
    for x, height_ms in ((0, bottom_ms), (1, times.step_ms)):
        panel.text(x, height_ms + 0.01 * tallest_ms, ms_text(height_ms), **style)
    panel.set_xticks([0, 1], ["phases, with borders", "as it runs"], size="small")
    panel.set_xlim(-0.5, 1.5)
    panel.set_ylim(0, 1.1 * tallest_ms)
    panel.set_ylabel("time of an optimizer step [ms]", size="small")
    panel.grid(axis="y", alpha=0.25)
    panel.set_axisbelow(True)
    _small_texts(panel, legend_columns=2)


def _stack(panel: "Axes", row: PhaseRow, bottom_ms: float, tallest_ms: float) -> None:
    height_ms, colour = row.ms or 0.0, PHASE_COLOURS[row.phase]
    label = f"{row.words}, {row.share:.1%}"
    panel.bar(0, height_ms, width=0.6, bottom=bottom_ms, color=colour, label=label)
    if height_ms < LEAST_LABEL * tallest_ms:
        return
    style: dict[str, Any] = {"ha": "center", "va": "center", "size": "small"}
    style["color"] = "white" if colour in DARK else "black"
    panel.text(0, bottom_ms + height_ms / 2, f"{row.words}\n{ms_text(height_ms)}", **style)


def _small_texts(panel: "Axes", *, legend_columns: int) -> None:
    panel.tick_params(labelsize="small")
    below: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.13)}
    panel.legend(**below, ncols=legend_columns, fontsize="x-small", frameon=False)


def _draw_roofline(panel: "Axes", found: ProfileResult, bounds: Bounds) -> None:
    own = found.rates.matrix_tflop_per_s[found.precision]
    # 10¹² byte/s, so that I · W is in TFLOP/s.
    memory = found.rates.memory_gb_per_s / 1e3
    intensity, achieved = bounds.intensity_flop_per_byte, bounds.achieved_tflop_per_s
    ends = sorted((own / memory, intensity))
    across = np.geomspace(ends[0] / BEYOND, ends[1] * BEYOND, POINTS)
    roof = np.minimum(own, across * memory)
    label = f"{own:.3g} TFLOP/s in {found.precision}, {found.rates.memory_gb_per_s:.3g} GB/s"
    panel.plot(across, roof, color="black", lw=1.8, label=f"measured roof: {label}")
    rates = found.rates.matrix_tflop_per_s
    others = {name: rate for name, rate in rates.items() if name != found.precision}
    for colour, (name, rate) in zip(COLOURS[2:], others.items(), strict=False):
        label = f"matrix products in {name}: {rate:.3g} TFLOP/s"
        panel.axhline(rate, color=colour, lw=1.2, linestyle="--", label=label)
    label = (
        f"up to the bounds: arithmetic {ms_text(bounds.compute_bound_ms)},"
        f" memory about {ms_text(bounds.memory_bound_ms)}"
    )
    top = min(own, intensity * memory)
    panel.plot([intensity, intensity], [achieved, top], ":", color=COLOURS[0], lw=1.8, label=label)
    label = f"this recipe: {achieved:.3g} TFLOP/s, {bounds.peak_frac:.0%} of the matrix rate"
    style: dict[str, Any] = {"color": COLOURS[1], "markersize": 8, "linestyle": "none"}
    panel.plot(intensity, achieved, "o", label=label, **style)
    log_scales(panel)
    panel.set_xlim(across[0], across[-1])
    panel.set_ylim(min(achieved / 2, float(roof[0])), 2 * max(rates.values()))
    panel.set_xlabel("operations over bytes moved (estimate) [FLOP/byte]", size="small")
    panel.set_ylabel("rate [TFLOP/s]", size="small")
    panel.grid(alpha=0.25)
    _small_texts(panel, legend_columns=1)
