"""From what was measured, in seconds and bytes, to the figures that are shown."""

from tune_speed.data.loaders.base import Streaming
from tune_speed.experiments.profiling.blocks import StepsTaken
from tune_speed.experiments.profiling.phases import Phase
from tune_speed.experiments.profiling.result import Bounds, DeviceRates, StepTimes, StepWork
from tune_speed.experiments.profiling.roofline import roofline
from tune_speed.experiments.profiling.work import Work
from tune_speed.training.autotune.step_options import CHOICES
from tune_speed.training.recipe import Recipe

MIB, MS = 1024**2, 1e3
COMPUTING: tuple[Phase, ...] = ("forward", "backward", "forward_backward", "optimizer")


def found_for_auto(given: Recipe, ran: Recipe) -> dict[str, str]:
    """Returns what was found for each field that was `auto`."""
    fields = ("batch_size", "accumulation_steps", *CHOICES)
    found = {name: str(getattr(ran, name)) for name in fields if getattr(given, name) == "auto"}
    if given.effective_batch_size is not None:
        found["batch_size"] = str(ran.batch_size)
    ours, loader = given.loader, ran.loader
    if isinstance(ours, Streaming) and ours.workers == "auto" and isinstance(loader, Streaming):
        found["loader.workers"] = str(loader.workers)
    return found


def step_times(
    taken: StepsTaken, *, averaging_s: float | None, idle_s: float | None, is_host: bool
) -> StepTimes:
    """Returns the times of a step; `is_host`: the device is the host."""
    sum_s = sum(taken.total_s.values())
    computing_s = sum(taken.total_s[phase] for phase in COMPUTING)
    launch_frac = sum(taken.launched_s[phase] for phase in COMPUTING) / computing_s
    return StepTimes(
        step_ms=MS * taken.step_s,
        step_low_ms=MS * taken.low_s,
        step_high_ms=MS * taken.high_s,
        num_steps=taken.num_steps,
        unprofiled_wait_ms=MS * taken.waited_s,
        sync_ms=_scaled(averaging_s, MS),
        profiled_step_ms=MS * sum_s,
        overlap_ms=MS * (sum_s - taken.step_s),
        idle_ms=_scaled(idle_s, MS),
        launch_frac=None if is_host else launch_frac,
        **{f"{phase}_ms": MS * seconds for phase, seconds in taken.total_s.items()},
    )


def step_work(work: Work, taken: StepsTaken) -> StepWork:
    """Returns what a step computes and moves."""
    return StepWork(
        gflop=_scaled(work.flop, 1e-9),
        parameters_mib=work.parts.parameters / MIB,
        optimizer_state_mib=work.parts.optimizer_state / MIB,
        activations_mib=work.parts.saved / MIB,
        moved_mib=work.moved_bytes / MIB,
        copied_mib=taken.copied_bytes / MIB,
    )


def step_bounds(
    work: Work, taken: StepsTaken, rates: DeviceRates, *, precision: str
) -> Bounds | None:
    """Returns how quick a step could be; None for a network whose operations are not counted."""
    if work.flop is None:
        return None
    return roofline(
        flop=work.flop,
        moved_bytes=work.moved_bytes,
        host_bytes=taken.copied_bytes,
        flop_per_s=1e12 * rates.matrix_tflop_per_s[precision],
        memory_bytes_per_s=1e9 * rates.memory_gb_per_s,
        host_bytes_per_s=_scaled(rates.host_to_device_gb_per_s, 1e9),
        step_s=taken.step_s,
    )


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
