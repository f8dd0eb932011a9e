"""The phases of recorded optimizer steps, on the device's own time.

The host marks where a phase begins (`Marks`), and `torch.profiler` records marks, operations and
kernels; nothing waits for the device within a step. Let phase i end on the host at h_i, and the
last of the work that the host launched in it on the device at d_i. Then it ends on the device at

    e_i = max(e_{i-1}, h_i, d_i)

and takes e_i - e_{i-1}, as by a CUDA event at its end. So the phases sum up to the steps whether
the device waits for the host or the host is ahead; on a CPU d_i ≤ h_i, so they are the host's own.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, record_function

from tune_speed.core.errors import StorageError
from tune_speed.data.loaders.base import Batch
from tune_speed.experiments.profiling.result import PHASES, Phase
from tune_speed.runtime.device import synchronizer

PREFIX = "phase: "
"""Of a phase's name in the profiler's record and in a trace."""


class Marks:
    """Names what the host does between two marks; costs microseconds without a profiler."""

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        self._open: Any = None
        # The loss is scaled right before its backward, so that call is the border.
        scale = scaler.scale

        def scale_at_border(loss: Any) -> Any:
            self.enter("backward")
            return scale(loss)

        scaler.scale = scale_at_border  # type: ignore[method-assign, assignment]

    def enter(self, phase: Phase | None) -> None:
        """Ends the phase under way, and begins this one; None: no other."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = None if phase is None else record_function(f"{PREFIX}{phase}")
        if self._open is not None:
            self._open.__enter__()

    def over(self, planned: Iterable[Batch], *, is_recorded: bool) -> Iterator[Batch]:
        """Yields batches for the forward, made unless a CUDA graph makes them; then it updates."""
        self.enter("data_wait")
        for batch in planned:
            if is_recorded:
                yield batch
            else:
                self.enter("images")
                images, labels = batch
                self.enter("forward")
                yield images, labels
            self.enter("data_wait")
        self.enter("forward_backward" if is_recorded else "optimizer")


class Span(NamedTuple):
    """An operation on the host, or a kernel on the device [µs]."""

    launched_us: float
    began_us: float
    ended_us: float


class Recorded(NamedTuple):
    """Seconds of all recorded steps."""

    total_s: dict[Phase, float]
    busy_s: float
    """Sum over kernels on a GPU, or operations on a CPU [s]."""
    num_launches: int
    is_device_seen: bool
    num_samples: int


def record(
    take_step: Callable[[], int], *, num_steps: int, device: torch.device, trace: Path | None = None
) -> Recorded:
    """Records steps, and writes them as a Chrome trace to that file.

    Raises: StorageError if it cannot be written.
    """
    synchronize = synchronizer(device)
    # Its library reports on its own work to the terminal.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    kinds = {ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (device.type == "cuda")}
    synchronize()
    with torch.profiler.profile(activities=kinds, acc_events=True) as profiler:
        num_samples = sum(take_step() for _ in range(num_steps))
        synchronize()
    if trace is not None:
        try:
            trace.parent.mkdir(parents=True, exist_ok=True)
            trace.touch()
            profiler.export_chrome_trace(str(trace))
        except OSError as error:
            raise StorageError(f"{trace} cannot be written: {error}") from error
    events = list(profiler.events())
    kernels, operations = spans(events)
    work = kernels or operations
    return Recorded(
        phase_seconds(marks_of(events), work),
        busy_s=sum(each.ended_us - each.began_us for each in work) / 1e6,
        num_launches=len(work),
        is_device_seen=bool(kernels) or device.type == "cpu",
        num_samples=num_samples,
    )


def marks_of(events: Iterable[Any]) -> list[tuple[Phase, float, float]]:
    """Returns phases with beginning and end on the host [µs], in their order."""
    named: dict[str, Phase] = {f"{PREFIX}{phase}": phase for phase in PHASES}
    return sorted(
        ((named[e.name], e.time_range.start, e.time_range.end)
         for e in events if e.name in named and e.device_type == DeviceType.CPU),
        key=lambda mark: mark[1],
    )  # fmt: skip


def spans(events: list[Any]) -> tuple[list[Span], list[Span]]:
    """Returns kernels of a GPU, copies included, and outermost operations of the phases."""
    launched_us, kernels, operations = dict[int, float](), list[Any](), list[Span]()
    for event in events:
        start_us, end_us = event.time_range.start, event.time_range.end
        if event.is_user_annotation:
            continue
        if event.device_type == DeviceType.CUDA:
            kernels.append(event)
        # The call of CUDA that launches a kernel has its number.
        elif event.name.startswith("cu"):
            launched_us[event.id] = start_us
        elif event.cpu_parent is not None and event.cpu_parent.is_user_annotation:
            operations.append(Span(start_us, start_us, end_us))
    ranges = [(each.id, each.time_range.start, each.time_range.end) for each in kernels]
    return [Span(launched_us.get(i, start), start, end) for i, start, end in ranges], operations


def phase_seconds(
    marks: list[tuple[Phase, float, float]], work: Iterable[Span]
) -> dict[Phase, float]:
    """Returns each phase's seconds on the device, by this module's formula."""
    starts, ends = [start_us for _, start_us, _ in marks], [end_us for *_, end_us in marks]
    for each in work:
        number = max(0, bisect_right(starts, each.launched_us) - 1)
        ends[number] = max(ends[number], each.ended_us)
    total_s, before_us = dict.fromkeys(PHASES, 0.0), starts[0]
    for (phase, *_), end_us in zip(marks, ends, strict=True):
        total_s[phase] += max(0.0, end_us - before_us) / 1e6
        before_us = max(before_us, end_us)
    return total_s
