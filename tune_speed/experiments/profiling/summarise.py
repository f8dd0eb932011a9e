"""From what was measured, in seconds and bytes, to the figures that are shown.

The roofline says how quick a step could be at best. With F operations and B bytes of a step (see
`work`), the device's rates R [FLOP/s] and W [byte/s] (see `rates`), and H bytes from the host at V
[byte/s]:

    t_compute = F / R      t_memory = B / W      t_host = H / V      t ≥ max(t_compute, t_memory)

The arithmetic intensity is I = F / B [FLOP/byte]; the roof over it, min(R, I · W), is reached by
a step that takes exactly max(t_compute, t_memory). Where I < R / W, memory binds.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009. We differ in measuring both rates.
"""

from tune_speed.data.loaders.base import Streaming
from tune_speed.experiments.profiling.phases import Phase, StepsTaken
from tune_speed.experiments.profiling.result import Bounds, DeviceRates, StepTimes, StepWork
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
        parameters_mib=work.parameters / MIB,
        optimizer_state_mib=work.optimizer_state / MIB,
        activations_mib=work.saved / MIB,
        moved_mib=work.moved_bytes / MIB,
        copied_mib=taken.copied_bytes / MIB,
    )


def roofline(
    flop: float | None,
    moved_bytes: float,
    rates: DeviceRates,
    *,
    precision: str,
    host_bytes: float,
    step_s: float,
) -> Bounds | None:
    """Returns the bounds of a step that takes `step_s` as it runs; None where F is not known.

    In this module's symbols: F is `flop`, B `moved_bytes` and H `host_bytes`; `rates` has R in the
    recipe's precision, W, and V where the device is not the host.
    """
    if flop is None:
        return None
    flop_per_s = 1e12 * rates.matrix_tflop_per_s[precision]
    compute_s, memory_s = flop / flop_per_s, moved_bytes / (1e9 * rates.memory_gb_per_s)
    host_rate = rates.host_to_device_gb_per_s
    # Copies from the host can be hidden behind computing, so theirs is a bound by itself.
    return Bounds(
        compute_bound_ms=1e3 * compute_s,
        memory_bound_ms=1e3 * memory_s,
        host_bound_ms=1e3 * host_bytes / (1e9 * host_rate) if host_rate else None,
        binding="compute" if compute_s >= memory_s else "memory",
        intensity_flop_per_byte=flop / moved_bytes,
        achieved_tflop_per_s=flop / step_s / 1e12,
        peak_frac=flop / step_s / flop_per_s,
        roof_frac=max(compute_s, memory_s) / step_s,
    )


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
