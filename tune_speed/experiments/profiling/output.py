"""A profile as rows, for tables and CSV, and its advice as sentences."""

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tune_speed.core.text import device_text, printable
from tune_speed.experiments.profiling.result import PHASES, Advice, Phase, ProfileResult
from tune_speed.reporting.table import Table

WORDS: dict[Phase, str] = {
    "data_wait": "waiting for a batch",
    "images": "making images",
    "forward": "forward",
    "backward": "backward",
    "forward_backward": "recorded step",
    "optimizer": "optimizer",
    "loop": "other",
}
PEAKS = {"compute": "arithmetic", "memory": "memory"}
NOTHING = "nothing stands out: no phase takes a share of which a change of the recipe is known"


def phase_rows(found: ProfileResult) -> list[dict[str, Any]]:
    """Returns time, share, rate and share of the measured peak that binds, a row a phase."""
    rows = list[dict[str, Any]]()
    for phase in PHASES:
        ms, bounds = getattr(found.times, f"{phase}_ms"), found.phase_bounds.get(phase)
        if ms == 0 and phase not in ("data_wait", "loop"):
            continue
        rate, peak = "", ""
        if bounds is not None:
            rate = f"{bounds.achieved_tflop_per_s:.3g}" if bounds.gflop else ""
            peak = f"{bounds.roof_frac:.0%} ({PEAKS[bounds.binding]})"
        share = f"{ms / found.times.profiled_step_ms:.1%}"
        row = {"phase": WORDS[phase], "ms": round(ms, 3), "share": share}
        rows.append({**row, "TFLOP/s": rate, "of the measured peak": peak})
    return rows


def ms_text(ms: float) -> str:
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def sentences(found: ProfileResult) -> list[str]:
    times, bounds, rates = found.times, found.bounds, found.rates
    low, high = ms_text(times.step_low_ms), ms_text(times.step_high_ms)
    recorded = f"{ms_text(times.profiled_step_ms)} where it is recorded ({times.num_steps} steps)"
    lines = [f"A step takes {ms_text(times.step_ms)} as it runs ({low} to {high}), {recorded}."]
    if times.idle_ms is not None:
        idle = f"{ms_text(times.idle_ms)} of it ({times.idle_ms / times.step_ms:.0%})"
        lines.append(f"The device computes nothing for {idle}.")
    peaks = [f"{rate:.3g} TFLOP/s in {name}" for name, rate in rates.matrix_tflop_per_s.items()]
    memory = f"{rates.memory_gb_per_s:.3g} GB/s of memory"
    lines.append(f"Measured peaks: {', '.join(peaks)}; {memory}.")
    if bounds is not None:
        work = f"{bounds.gflop:.4g} GFLOP and about {bounds.moved_mib:,.0f} MiB moved"
        binds = f"{PEAKS[bounds.binding]} binds, for {bounds.roof_frac:.0%} of a step at least"
        lines.append(f"{work} a step, {bounds.achieved_tflop_per_s:.3g} TFLOP/s: {binds}.")
    lines += [f"`{field}`: auto, found {value}." for field, value in found.resolved.items()]
    if found.devices > 1:
        lines.append(f"One of {found.devices} devices was profiled, without averaging gradients.")
    return lines


def advice_texts(found: ProfileResult) -> list[str]:
    return [f"{each.rule}: {advice_text(each)}" for each in found.advice] or [NOTHING]


def advice_text(advice: Advice) -> str:
    changes = ", ".join(f"`{c.field}` {c.before} → {c.after}" for c in advice.changes)
    return "; ".join(filter(None, [advice.because, changes, advice.hint]))


def as_renderables(found: ProfileResult) -> tuple[RenderableType, ...]:
    return (
        Text(printable(title(found)), style="italic"),
        Table.of_rows(phase_rows(found), left=["phase"]),
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


def _lines(texts: list[str], *, style: str = "") -> RenderableType:
    return Group(*(Text(printable(text), style=style) for text in texts), Text())
