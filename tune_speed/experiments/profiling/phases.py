"""The phases of recorded optimizer steps, on the device's own time.

The host marks where a phase begins (`Marks`), and `torch.profiler` records marks, operations and
kernels; nothing waits for the device within a step. Let phase i end on the host at h_i, and the
last of the work that the host launched in it on the device at d_i. With e_0 the beginning, it ends
on the device at

    e_i = max(e_{i-1}, h_i, d_i)

and takes e_i - e_{i-1}, as by a CUDA event at its end. So the phases sum up to the steps whether
the device waits for the host or the host is ahead; on a CPU d_i ≤ h_i, so they are the host's own.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, record_function

from tune_speed.data.loaders.base import Batch
from tune_speed.experiments.profiling.result import PHASES, Phase

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
        self._open = None if phase is None else record_function(f"{PREFIX}{phase}").__enter__()

    def over(self, planned: Iterable[Batch], *, is_recorded: bool) -> Iterator[Batch]:
        """Yields batches for the forward, made unless a CUDA graph makes them; then it updates."""
        after: tuple[Phase, Phase] = ("forward", "optimizer")
        if is_recorded:
            after = ("forward_backward", "forward_backward")
        batches = iter(planned)
        while True:
            self.enter("data_wait")
            batch = next(batches, None)
            if batch is None:
                self.enter(after[1])
                return
            if not is_recorded:
                self.enter("images")
                images, labels = batch
                batch = images, labels
            self.enter(after[0])
            yield batch


class Work(NamedTuple):
    """An operation on the host, or a kernel on the device."""

    launched_us: float
    """When the host launched it [µs]."""
    began_us: float
    ended_us: float


class Recorded(NamedTuple):
    """Seconds of all recorded steps."""

    total_s: dict[Phase, float]
    busy_s: float
    """Sum over kernels on a GPU, or operations on a CPU [s]."""
    num_launches: int
    is_device_seen: bool
    """Whether the work is the device's own."""
    num_samples: int


def record(
    take_step: Callable[[], int],
    *,
    num_steps: int,
    device: torch.device,
    synchronize: Callable[[], None],
    trace: str | None,
) -> Recorded:
    """Records steps, which may be left queued on the device; writes a Chrome trace on request."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    synchronize()
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        num_samples = sum(take_step() for _ in range(num_steps))
        synchronize()
    if trace is not None:
        profiler.export_chrome_trace(trace)
    events = list(profiler.events())
    kernels = _kernels(events)
    work = kernels or _operations(events)
    marks = [each for each in events if each.name.startswith(PREFIX) and _is_on_host(each)]
    borders = [
        (_phase_of(each), each.time_range.start, each.time_range.end)
        for each in sorted(marks, key=lambda each: each.time_range.start)
    ]
    return Recorded(
        phase_seconds(borders, work),
        busy_s=sum(each.ended_us - each.began_us for each in work) / 1e6,
        num_launches=len(work),
        is_device_seen=bool(kernels) or device.type == "cpu",
        num_samples=num_samples,
    )


def _is_on_host(event: Any) -> bool:
    # Phases lie on the device's lanes, too, as spans of the kernels below them.
    return bool(event.device_type == DeviceType.CPU)


def _phase_of(event: Any) -> Phase:
    (found,) = (phase for phase in PHASES if event.name == f"{PREFIX}{phase}")
    return found


def _kernels(events: list[Any]) -> list[Work]:
    """Returns what ran on a GPU, copies included, in order of launch."""
    # The call that launches a kernel has its number; calls of CUDA begin so.
    launches = {
        event.id: event.time_range.start
        for event in events
        if _is_on_host(event) and event.name.startswith("cu")
    }
    found = [
        Work(launches.get(event.id, event.time_range.start), *_range(event))
        for event in events
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    ]
    return sorted(found)


def _operations(events: list[Any]) -> list[Work]:
    """Returns the outermost operations of phases, without what these call."""
    return sorted(
        Work(event.time_range.start, *_range(event))
        for event in events
        if not event.is_user_annotation
        and event.cpu_parent is not None
        and event.cpu_parent.is_user_annotation
    )


def _range(event: Any) -> tuple[float, float]:
    return event.time_range.start, event.time_range.end


def phase_seconds(
    borders: list[tuple[Phase, float, float]], work: list[Work]
) -> dict[Phase, float]:
    """Returns each phase's seconds on the device, by this module's formula.

    `borders` are phases with beginning and end on the host [µs], in their order; time between two
    of them is the later one's.
    """
    starts = [start_us for _, start_us, _ in borders]
    ends = [end_us for *_, end_us in borders]
    for each in work:
        # A launch that no phase holds belongs to the one before it.
        number = max(0, bisect_right(starts, each.launched_us) - 1)
        ends[number] = max(ends[number], each.ended_us)
    total_us = dict.fromkeys(PHASES, 0.0)
    before_us = starts[0]
    for (phase, *_), end_us in zip(borders, ends, strict=True):
        end_us = max(before_us, end_us)
        total_us[phase] += end_us - before_us
        before_us = end_us
    return {phase: us / 1e6 for phase, us in total_us.items()}
