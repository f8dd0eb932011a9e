"""The phases of an optimizer step, separated by borders at which the device is waited for.

`take_blocks` has steps as they run and steps with borders take turns. The step itself is
`Stepper.learn`, as in training: what is measured are the calls that it makes.

| phase              | from                       | to                                            |
|--------------------|----------------------------|-----------------------------------------------|
| `data_wait`        | a batch is asked for       | it is there, ready to be computed with        |
| `host_to_device`   | a tensor leaves the host   | it is on the device                           |
| `forward`          | the batch is there         | its loss is                                   |
| `backward`         | the loss is there          | its gradient is added                         |
| `forward_backward` | both, and mostly images and update too, in a recorded CUDA graph           |
| `optimizer`        | the last gradient is there | the weights are new                           |
| `loop`             | all else                   |                                               |
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.utils._python_dispatch import TorchDispatchMode

from tune_speed.components.speedups.base import Shape
from tune_speed.training.step.recorded import RecordedStep, Recording
from tune_speed.training.step.step import Gradient

Phase = Literal[
    "data_wait",
    "host_to_device",
    "forward",
    "backward",
    "forward_backward",
    "optimizer",
    "loop",
]
PHASES: tuple[Phase, ...] = get_args(Phase)
Batch = TypeVar("Batch")
# A block has so many steps at most, and more where it would be shorter than that [s].
BLOCK_STEPS = 5
BLOCK_S = 0.01
LEAST_BLOCKS = 4
"""Of each kind, where there are so many steps."""
RECORDED_STEPS = 5
TakeStep = Callable[[], int]
"""Does one optimizer step and returns its number of samples."""


class PhaseTimer:
    """Adds up the seconds of each phase while it is on."""

    def __init__(
        self, *, synchronize: Callable[[], None], now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._synchronize, self._now = synchronize, now
        self.phase: Phase | None = None
        """What is under way; None while the timer is off."""
        self._began_s = 0.0
        self.total_s: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        """Seconds from border to border, by phase."""
        self.launched_s: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        """Of these, until the host had queued the work; the rest it waited for the device. Where
        both are equal, the device kept up with the host, or there is no other device."""
        self.copied_bytes = 0
        """Bytes that left the host for the device."""

    @contextmanager
    def on(self) -> Iterator[None]:
        self._synchronize()
        self.phase, self._began_s = "loop", self._now()
        try:
            yield
            self.enter("loop")
        finally:
            self.phase = None

    def enter(self, phase: Phase) -> Phase | None:
        """Ends the phase under way, begins another one, and returns the one that ended."""
        before = self.phase
        # With the timer off, a border costs next to nothing: the same calls run in both kinds.
        if before is None:
            return None
        launched_s = self._now()
        self._synchronize()
        ended_s = self._now()
        self.total_s[before] += ended_s - self._began_s
        self.launched_s[before] += launched_s - self._began_s
        # Reading the clock is no part of what begins.
        self.phase, self._began_s = phase, ended_s
        return before

    def over(self, batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
        """Yields what `batches` yields; after the last one the optimizer's phase begins."""
        while True:
            before = self.enter("data_wait")
            # Watching costs microseconds an operation; a CPU is no other device than the host.
            is_watched = before is not None and device.type != "cpu"
            with CopyWatch(self, device) if is_watched else nullcontext():
                batch = next(batches, None)
            if batch is None:
                self.enter("optimizer")
                return
            self.enter(before or "loop")
            yield batch


class CopyWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts copies from the host to a device of another kind as a phase of their own."""

    # Copies that another thread begins are not seen: they count as `data_wait` as far as they are
    # waited for.

    def __init__(self, timer: PhaseTimer, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._timer, self._device = timer, device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        source: Any = None
        to: Any = None
        if func is torch.ops.aten._to_copy.default:
            source, to = args[0], named.get("device") or args[0].device
        elif func is torch.ops.aten.copy_.default:
            source, to = args[1], args[0].device
        is_from_host = source is not None and source.device.type == "cpu"
        if not is_from_host or not to.type == self._device.type != "cpu":
            return func(*args, **named)
        before = self._timer.enter("host_to_device")
        done = func(*args, **named)
        self._timer.enter(before or "loop")
        self._timer.copied_bytes += source.nbytes
        return done


class TimedGradient:
    """A gradient whose forward and backward are timed apart."""

    def __init__(self, inner: Gradient, timer: PhaseTimer, scaler: torch.amp.GradScaler) -> None:
        self._inner, self._timer = inner, timer
        # The loss is scaled right before its backward, so that call is the border.
        scale = scaler.scale

        def scale_at_border(loss: Any) -> Any:
            timer.enter("backward")
            return scale(loss)

        scaler.scale = scale_at_border  # type: ignore[method-assign, assignment]

    def add(
        self, images: Tensor, labels: Tensor, *, divisor: float, shape: Shape, frac: float
    ) -> Tensor:
        self._timer.enter("forward")
        loss = self._inner.add(images, labels, divisor=divisor, shape=shape, frac=frac)
        self._timer.enter("loop")
        return loss


def time_replays(recorder: RecordedStep, timer: PhaseTimer) -> None:
    replay = recorder.replay

    def timed(recording: Recording) -> None:
        timer.enter("forward_backward")
        replay(recording)
        timer.enter("optimizer")

    recorder.replay = timed  # type: ignore[method-assign]


class StepsTaken(NamedTuple):
    """What blocks of both kinds took; seconds of a full step."""

    num_steps: int
    step_s: float
    """A step as it runs: all seconds over all samples [s]."""
    low_s: float
    high_s: float
    """The fastest and the slowest block's [s]."""
    waited_s: float
    """Of it, the host in `next()` [s]."""
    core_wait_s: float
    """Seconds that threads waited for a core during it, in all [s]."""
    total_s: dict[Phase, float]
    launched_s: dict[Phase, float]
    """Of these, until the host had queued the work [s]."""
    copied_bytes: float


def take_blocks(
    take_step: TakeStep,
    timer: PhaseTimer,
    *,
    num_steps: int,
    step_s: float,
    samples_per_step: int,
    synchronize: Callable[[], None],
    waited: Callable[[], float],
    core_waited: Callable[[], float],
    now: Callable[[], float] = time.perf_counter,
    on_block: Callable[[int, int], None] = lambda done, total: None,
) -> StepsTaken:
    """Takes `num_steps` steps of either kind, or somewhat more to fill the last block.

    `take_step` may leave its step queued on the device; `timer` is on during half of the blocks. A
    step takes `step_s` seconds, roughly. `waited` returns the seconds in `next()` so far, and
    `core_waited` those that threads have waited for a core.
    """
    few = min(BLOCK_STEPS, -(-num_steps // LEAST_BLOCKS))
    steps = min(num_steps, max(few, round(BLOCK_S / max(step_s, 1e-9))))
    pairs = -(-num_steps // steps)
    plain: list[tuple[float, ...]] = []
    timed_samples = 0
    # The order is A B B A A B B A …, so that a drift of the machine's speed favours neither kind.
    for number in range(2 * pairs):
        if number % 4 in (1, 2):
            for _ in range(steps):
                with timer.on():
                    timed_samples += take_step()
        else:
            waits = waited(), core_waited()
            # At its ends only, as in a training, so that what overlaps there does so here.
            synchronize()
            began_s = now()
            samples = sum(take_step() for _ in range(steps))
            synchronize()
            block_s = now() - began_s
            plain.append((samples, block_s, waited() - waits[0], core_waited() - waits[1]))
        on_block((number + 1) * steps, 2 * pairs * steps)
    # Per sample, so that a ragged step at an epoch's end counts by its samples.
    per_sample = [samples_per_step * block_s / samples for samples, block_s, *_ in plain]
    num_samples, *sums = map(math.fsum, zip(*plain, strict=True))
    step_s, waited_s, core_wait_s = (samples_per_step / num_samples * each for each in sums)
    a_timed_step = samples_per_step / timed_samples
    return StepsTaken(
        num_steps=pairs * steps,
        step_s=step_s,
        low_s=min(per_sample),
        high_s=max(per_sample),
        waited_s=waited_s,
        core_wait_s=core_wait_s,
        total_s={phase: timer.total_s[phase] * a_timed_step for phase in PHASES},
        launched_s={phase: timer.launched_s[phase] * a_timed_step for phase in PHASES},
        copied_bytes=timer.copied_bytes * a_timed_step,
    )


def busy_s_per_sample(take_step: TakeStep, *, device: torch.device) -> float | None:
    """Kernels that run at the same time count each; None on a CPU, and without a recorded one."""
    if device.type != "cuda":
        return None
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as recorded:
        samples = sum(take_step() for _ in range(RECORDED_STEPS))
        torch.cuda.synchronize(device)
    # Calls on the host carry the time of the kernels that they launch, too.
    busy_us = sum(
        event.self_device_time_total
        for event in recorded.key_averages()
        if event.device_type == DeviceType.CUDA
    )
    return busy_us / 1e6 / samples if busy_us else None
