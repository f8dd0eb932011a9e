"""What a profile found: frozen records for JSON, whose names carry their units."""

from typing import Literal, get_args

from tune_speed.core.records import Record

Phase = Literal[
    "data_wait", "images", "forward", "backward", "forward_backward", "optimizer", "loop"
]
PHASES: tuple[Phase, ...] = get_args(Phase)


class StepTimes(Record):
    """Milliseconds of one optimizer step of `samples_per_step` samples.

    The phases are those of steps that `torch.profiler` records, which cost more than steps as they
    run: `profiled_step_ms` is their sum. No step waits for the device between its phases.
    """

    step_ms: float
    """A step as it runs, without a profiler [ms]."""
    step_low_ms: float
    """Lower end of its 95 % interval [ms]."""
    step_high_ms: float
    num_steps: int
    """Steps that were recorded."""
    data_wait_ms: float
    """Waiting for batches: drawing, gathering, workers, and copies to the device [ms]."""
    images_ms: float
    """Making images of stored pixels: crops, random changes, normalising [ms]."""
    forward_ms: float
    backward_ms: float
    forward_backward_ms: float
    """Images, forward, backward and optimizer of a step that is one CUDA graph [ms]; else 0."""
    optimizer_ms: float
    """From the last gradient to the end of the step: scaling, clipping, update, averages [ms]."""
    loop_ms: float
    """All else [ms]."""
    profiled_step_ms: float
    busy_ms: float
    """Kernels on a GPU, operations on a CPU, of a recorded step [ms]."""
    idle_ms: float | None
    """Of a step as it runs, the device computed nothing, `step_ms` less `busy_ms` and at least 0
    [ms]; None where the profiler saw no kernel of a GPU."""
    num_launches: float
    """Kernels of a GPU, operations of a CPU, in a step."""


class DeviceRates(Record):
    """What the device did at best, measured just before."""

    matrix_tflop_per_s: dict[str, float]
    """Matrix products by precision [10¹² FLOP/s]."""
    memory_gb_per_s: float
    """Bytes read and written by a copy within the device's memory [10⁹ byte/s]."""


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
    """Least bytes that a step moves within the device, an estimate [MiB]."""


class Bounds(Record):
    """How quick a phase, or a whole step, could be at best, by measured rates."""

    compute_bound_ms: float
    memory_bound_ms: float
    binding: Literal["compute", "memory"]
    intensity_flop_per_byte: float
    achieved_tflop_per_s: float
    """Operations over the time [10¹² FLOP/s]."""
    peak_frac: float
    """Achieved over the measured matrix rate."""
    roof_frac: float
    """The larger bound over the time: the share of the measured peak; 1 is as quick as can be."""


class Change(Record):
    """A field of the recipe, and what it would be."""

    field: str
    before: str
    after: str


class Advice(Record):
    """Something to try."""

    rule: Literal["data", "launches", "arithmetic", "memory"]
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
    """What was found for fields that are `auto`."""
    times: StepTimes
    work: StepWork
    rates: DeviceRates
    bounds: Bounds | None
    """Of a step as it runs; None for a network whose operations are not counted."""
    phase_bounds: dict[Phase, Bounds]
    """Of the phases whose work is known."""
    advice: tuple[Advice, ...] = ()
