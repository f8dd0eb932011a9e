"""How long a GPU computes within a step, by the driver's own record of its kernels."""

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from tune_speed.experiments.profiling.blocks import TakeStep

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
