"""Steps as they run and steps with borders, in turns: a drift of the machine's speed favours none.

Blocks of either kind follow one another as A B B A A B B A …; a block of A is synchronised at its
ends only, as a training is, so that what host and device do at the same time stays so. Figures are
seconds per sample times the samples of a full step, so that a ragged step at an epoch's end counts
by its samples.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from tune_speed.experiments.profiling.phases import PHASES, Phase, PhaseTimer

BLOCK_STEPS = 5
BLOCK_S = 0.01
"""A block has so many steps at most, and more where it would be shorter than that [s]."""
LEAST_BLOCKS = 4
"""Of each kind, where there are so many steps."""
TakeStep = Callable[[], int]
"""Does one optimizer step and returns its number of samples."""


class StepsTaken(NamedTuple):
    """What blocks of both kinds took; seconds of a full step."""

    num_steps: int
    """Of each kind."""
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
    """Phases of a step with borders [s]."""
    launched_s: dict[Phase, float]
    """Of these, until the host had said what to do [s]."""
    copied_bytes: float
    """Bytes that left the host for the device in a step."""


class _Tally:
    """Seconds and samples of one kind of block."""

    def __init__(self) -> None:
        self.seconds, self.samples = 0.0, 0
        self.per_sample: list[float] = []

    def add(self, seconds: float, samples: int) -> None:
        self.seconds += seconds
        self.samples += samples
        self.per_sample.append(seconds / samples)


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

    Args:
        take_step: does the next step of the pipeline; may leave it queued on the device.
        timer: is on during half of the blocks.
        num_steps: of each kind.
        step_s: seconds of a step, roughly.
        samples_per_step: effective batch size.
        synchronize: waits for the device.
        waited: seconds in `next()` so far.
        core_waited: seconds that threads have waited for a core so far.
        now: a monotonic clock [s].
        on_block: gets the number of steps done and their number in all.
    """
    steps = _steps_of_a_block(num_steps, step_s)
    pairs = -(-num_steps // steps)
    plain, timed, waited_s, core_wait_s = _Tally(), _Tally(), 0.0, 0.0
    for number in range(2 * pairs):
        is_timed = number % 4 in (1, 2)
        waited_before_s, core_before_s = waited(), core_waited()
        synchronize()
        began_s = now()
        if is_timed:
            samples = 0
            for _ in range(steps):
                with timer.on():
                    samples += take_step()
        else:
            samples = sum(take_step() for _ in range(steps))
            synchronize()
        (timed if is_timed else plain).add(now() - began_s, samples)
        if not is_timed:
            waited_s += waited() - waited_before_s
            core_wait_s += core_waited() - core_before_s
        on_block((number + 1) * steps, 2 * pairs * steps)
    a_step = samples_per_step / timed.samples
    return StepsTaken(
        num_steps=pairs * steps,
        step_s=plain.seconds / plain.samples * samples_per_step,
        low_s=min(plain.per_sample) * samples_per_step,
        high_s=max(plain.per_sample) * samples_per_step,
        waited_s=waited_s / plain.samples * samples_per_step,
        core_wait_s=core_wait_s / plain.samples * samples_per_step,
        total_s={phase: timer.total_s[phase] * a_step for phase in PHASES},
        launched_s={phase: timer.launched_s[phase] * a_step for phase in PHASES},
        copied_bytes=timer.copied_bytes * a_step,
    )


def _steps_of_a_block(num_steps: int, step_s: float) -> int:
    few = min(BLOCK_STEPS, -(-num_steps // LEAST_BLOCKS))
    return min(num_steps, max(few, round(BLOCK_S / max(step_s, 1e-9))))


STEPS = 5


def busy_s_per_sample(take_step: TakeStep, *, device: torch.device) -> float | None:
    """Returns the seconds of all kernels and copies of a few steps, per sample.

    Those that run at the same time count each. None on a CPU, and where nothing was recorded.
    """
    if device.type != "cuda":
        return None
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as recorded:
        samples = sum(take_step() for _ in range(STEPS))
        torch.cuda.synchronize(device)
    # Calls on the host carry the time of the kernels that they launch, too.
    busy_us = sum(
        event.self_device_time_total
        for event in recorded.key_averages()
        if event.device_type == DeviceType.CUDA
    )
    return busy_us / 1e6 / samples if busy_us else None
