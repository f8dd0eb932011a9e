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
NOTHING = "nothing stands out: no phase takes a share of which a change of the recipe is known"


def phase_rows(found: ProfileResult) -> list[dict[str, Any]]:
    """Returns time, share, rate and share of the measured peak that binds, a row a phase."""
    rows = list[dict[str, Any]]()
    for phase in PHASES:
        ms, bounds = getattr(found.times, f"{phase}_ms"), found.phase_bounds.get(phase)
        if ms == 0 and phase in ("forward", "backward", "optimizer", "images", "forward_backward"):
            continue
        row = {
            "phase": WORDS[phase],
            "ms": round(ms, 3),
            "share": f"{ms / found.times.profiled_step_ms:.1%}",
            "TFLOP/s": None,
            "of the peak": None,
        }
        if bounds is not None:
            peak = {"compute": "arithmetic", "memory": "memory"}[bounds.binding]
            row["TFLOP/s"] = float(f"{bounds.achieved_tflop_per_s:.3g}") or None
            row["of the peak"] = f"{bounds.roof_frac:.0%} ({peak})"
        rows.append(row)
    return rows


def ms_text(ms: float) -> str:
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def sentences(found: ProfileResult) -> list[str]:
    times, bounds, rates = found.times, found.bounds, found.rates
    low, high = ms_text(times.step_low_ms), ms_text(times.step_high_ms)
    lines = [
        f"A step as it runs takes {ms_text(times.step_ms)} ({low} to {high}), and"
        f" {ms_text(times.profiled_step_ms)} where it is recorded ({times.num_steps} steps)."
    ]
    if times.idle_ms is not None:
        share = times.idle_ms / times.step_ms
        lines.append(f"The device computes nothing for {ms_text(times.idle_ms)} of it ({share:.0%}).")
    peaks = [f"{rate:.3g} TFLOP/s in {name}" for name, rate in rates.matrix_tflop_per_s.items()]
    memory = f"{rates.memory_gb_per_s:.3g} GB/s"
    lines.append(f"Measured peaks: matrix products {', '.join(peaks)}; memory {memory}.")
    if bounds is not None:
        what = {"compute": "arithmetic", "memory": "memory"}[bounds.binding]
        lines.append(
            f"{bounds.achieved_tflop_per_s:.3g} TFLOP/s, {bounds.peak_frac:.0%} of the peak of"
            f" matrix products, at {bounds.intensity_flop_per_byte:.3g} FLOP a byte: {what} binds,"
            f" and takes at least {bounds.roof_frac:.0%} of a step."
        )
    lines += [f"`{field}`: auto, found {value}." for field, value in found.resolved.items()]
    if found.devices > 1:
        lines.append(f"One of {found.devices} devices was profiled, without averaging gradients.")
    return lines


def advice_text(advice: Advice) -> str:
    changes = ", ".join(f"`{c.field}` {c.before} → {c.after}" for c in advice.changes)
    said = ": ".join(filter(None, [advice.because, changes]))
    return "; ".join(filter(None, [said, advice.hint]))


def advice_texts(found: ProfileResult) -> list[str]:
    return [f"{each.rule}: {advice_text(each)}" for each in found.advice] or [NOTHING]


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
