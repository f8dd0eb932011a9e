"""What a profile found: frozen records for JSON, whose names carry their units."""

from typing import Literal

from tune_speed.core.records import Record
from tune_speed.experiments.profiling.phases import Phase


class StepTimes(Record):
    """Milliseconds of one optimizer step of `samples_per_step` samples.

    The phases are those of steps with borders, at which the device is waited for. Their sum is
    `profiled_step_ms`; it exceeds `step_ms` by what host and device do at the same time in steps as
    they run, and by what the borders cost.
    """

    step_ms: float
    """A step as it runs, without borders [ms]."""
    step_low_ms: float
    step_high_ms: float
    num_steps: int
    data_wait_ms: float
    """Waiting for batches: gathering, workers, augmentation; copies to the device left out [ms]."""
    unprofiled_wait_ms: float
    """The host in `next()` in steps as they run [ms]. On a GPU it may hide behind queued work."""
    host_to_device_ms: float
    """Copying batches from the host [ms]; 0 where the device is the host, or has the whole set."""
    forward_ms: float
    backward_ms: float
    forward_backward_ms: float
    optimizer_ms: float
    sync_ms: float | None
    """Averaging gradients over devices, measured apart [ms]; 0 with one device."""
    loop_ms: float
    profiled_step_ms: float
    """Sum of the phases, `sync_ms` left out [ms]."""
    overlap_ms: float
    """`profiled_step_ms` less `step_ms` [ms]: what overlap hides in steps as they run, and what
    borders cost. Below 0: the machine's unrest, as borders save nothing."""
    idle_ms: float | None
    """Of a step as it runs, the device did nothing, within the phases [ms]. On a GPU: the step less
    the time of its kernels. On a CPU: what a thread waited for a core that others had. None where
    that is not known."""
    launch_frac: float | None
    """Share of forward, backward and optimizer that had passed when the host had queued it:
    near 1 the device waits for its host. None where the device is the host."""


class DeviceRates(Record):
    """What the device did at best, measured just before."""

    matrix_tflop_per_s: dict[str, float]
    """Matrix products by precision [10¹² FLOP/s]."""
    memory_gb_per_s: float
    """Bytes read and written by a copy within the device's memory [10⁹ byte/s]."""
    host_to_device_gb_per_s: float | None
    """Copies from the host [10⁹ byte/s]; None where the device is the host."""


class StepWork(Record):
    """What a step computes and moves."""

    gflop: float | None
    """Operations of forward and backward [10⁹ FLOP]: convolutions, matrix products and attention.
    None for a network without any."""
    parameters_mib: float
    optimizer_state_mib: float
    activations_mib: float
    """What the forward of one micro-batch saves for its backward [MiB], uncompiled."""
    moved_mib: float
    """Least bytes that a step moves within the device, an estimate [MiB]; see `work`."""
    copied_mib: float


class Bounds(Record):
    """How quick a step could be at best, by measured rates."""

    compute_bound_ms: float
    memory_bound_ms: float
    host_bound_ms: float | None
    binding: Literal["compute", "memory"]
    intensity_flop_per_byte: float
    achieved_tflop_per_s: float
    """Operations over the time of a step as it runs [10¹² FLOP/s]."""
    peak_frac: float
    """Achieved over the measured matrix rate."""
    roof_frac: float
    """The larger bound over the time of a step as it runs; 1 is as quick as can be."""


class Change(Record):
    """A field of the recipe, and what it would be."""

    field: str
    before: str
    after: str


class Advice(Record):
    """Something to try."""

    rule: str
    phase: Phase | str
    because: str
    changes: tuple[Change, ...] = ()
    hint: str = ""


class ProfileResult(Record):
    """One recipe on one device."""

    name: str
    workload_name: str
    device: str
    device_type: str
    precision: str
    loader: str
    batch_size: int
    accumulation_steps: int
    samples_per_step: int
    """Of this device."""
    devices: int
    image_height_pixels: int
    image_width_pixels: int
    peak_memory_gib: float
    memory_limit_gib: float
    resolved: dict[str, str]
    times: StepTimes
    work: StepWork
    rates: DeviceRates
    bounds: Bounds | None
    """None for a network whose operations are not counted."""
    advice: tuple[Advice, ...] = ()
