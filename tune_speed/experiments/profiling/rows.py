"""A profile as rows, for tables and CSV, and its advice as sentences."""

from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from tune_speed.core.text import ABSENT, fixed, printable
from tune_speed.experiments.profiling.result import Advice, ProfileResult
from tune_speed.reporting.table import Column, Table

WORDS: dict[str, str] = {
    "data_wait": "waiting for data",
    "host_to_device": "copying to the device",
    "forward": "forward",
    "backward": "backward",
    "forward_backward": "forward and backward, recorded",
    "optimizer": "optimizer",
    "sync": "averaging gradients",
    "loop": "the loop itself",
}
"""What each phase is called, in a step's order."""
RARE = ("forward_backward", "sync")
"""Left out where they are zero."""
NOTHING = "nothing stands out: no phase takes a share of which a change of the recipe is known"


class PhaseRow(NamedTuple):
    """A phase of a step."""

    phase: str
    words: str
    ms: float | None
    """None: could not be measured."""
    share: float | None
    """Of the sum of all, averaging included."""


def phase_rows(found: ProfileResult) -> list[PhaseRow]:
    """Returns the phases of a step, but for rare ones that it does not have."""
    ms_of = {phase: getattr(found.times, f"{phase}_ms") for phase in WORDS}
    whole_ms = sum(ms or 0.0 for ms in ms_of.values())
    return [
        PhaseRow(phase, WORDS[phase], ms, None if ms is None else ms / whole_ms)
        for phase, ms in ms_of.items()
        if ms != 0.0 or phase not in RARE
    ]


def ms_text(ms: float) -> str:
    """Returns milliseconds with three digits, or as whole ones: `0.512 ms`, `1979 ms`."""
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def csv_rows(found: ProfileResult) -> list[dict[str, Any]]:
    """Returns a row a phase."""
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
    """Returns a row a measured rate, with what a step needs of it."""
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
    """Returns what the figures mean."""
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
    """Returns what lies between the sum of the phases and a step as it runs, in words."""
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
    """Returns one piece of advice: ``waiting for data 31%: `loader.workers` 2 → 4``."""
    changes = ", ".join(f"`{c.field}` {c.before} → {c.after}" for c in advice.changes)
    said = ": ".join(filter(None, [advice.because, changes]))
    return "; ".join(filter(None, [said, advice.hint]))


def advice_texts(found: ProfileResult) -> list[str]:
    """Returns each piece of advice, or that nothing stands out."""
    return [advice_text(advice) for advice in found.advice] or [NOTHING]


BAR_CHARACTERS = 30


def as_renderables(found: ProfileResult) -> tuple[RenderableType, ...]:
    """Returns heading, phases, rates, what they mean, and advice."""
    return (
        Text(printable(title(found)), style="italic"),
        _phases(found),
        Table.of_rows(rate_rows(found), left=["rate"]),
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
