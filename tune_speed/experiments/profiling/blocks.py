"""Steps as they run and steps with borders, in turns."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from tune_speed.experiments.profiling.phases import PHASES, Phase, PhaseTimer

# A block has so many steps at most, and more where it would be shorter than that [s].
BLOCK_STEPS = 5
BLOCK_S = 0.01
LEAST_BLOCKS = 4
"""Of each kind, where there are so many steps."""
RECORDED_STEPS = 5
"""Steps whose kernels are recorded."""
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
    """Of these, until the host had queued the work [s]."""
    copied_bytes: float
    """Bytes that left the host for the device in a step."""


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
    few = min(BLOCK_STEPS, -(-num_steps // LEAST_BLOCKS))
    steps = min(num_steps, max(few, round(BLOCK_S / max(step_s, 1e-9))))
    pairs = -(-num_steps // steps)
    plain: list[_Block] = []
    timed_samples = 0
    # The order is A B B A A B B A …, so that a drift of the machine's speed favours neither kind.
    for number in range(2 * pairs):
        if number % 4 in (1, 2):
            for _ in range(steps):
                with timer.on():
                    timed_samples += take_step()
        else:
            waited_s, core_wait_s = waited(), core_waited()
            # At its ends only, as in a training, so that what overlaps there does so here.
            synchronize()
            began_s = now()
            samples = sum(take_step() for _ in range(steps))
            synchronize()
            block_s = now() - began_s
            plain.append(_Block(samples, block_s, waited() - waited_s, core_waited() - core_wait_s))
        on_block((number + 1) * steps, 2 * pairs * steps)
    # Per sample, so that a ragged step at an epoch's end counts by its samples.
    per_sample = [samples_per_step * block.seconds / block.samples for block in plain]
    a_step = samples_per_step / sum(block.samples for block in plain)
    a_timed_step = samples_per_step / timed_samples
    return StepsTaken(
        num_steps=pairs * steps,
        step_s=a_step * sum(block.seconds for block in plain),
        low_s=min(per_sample),
        high_s=max(per_sample),
        waited_s=a_step * sum(block.waited_s for block in plain),
        core_wait_s=a_step * sum(block.core_wait_s for block in plain),
        total_s={phase: timer.total_s[phase] * a_timed_step for phase in PHASES},
        launched_s={phase: timer.launched_s[phase] * a_timed_step for phase in PHASES},
        copied_bytes=timer.copied_bytes * a_timed_step,
    )


class _Block(NamedTuple):
    """A block of steps as they run."""

    samples: int
    seconds: float
    waited_s: float
    core_wait_s: float


def busy_s_per_sample(take_step: TakeStep, *, device: torch.device) -> float | None:
    """Returns the seconds of all kernels and copies of a few steps, per sample.

    Those that run at the same time count each. None on a CPU, and where nothing was recorded.
    """
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
