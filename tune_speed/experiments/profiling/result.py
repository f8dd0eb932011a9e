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
    run; `profiled_step_ms` is their sum.
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
    idle_ms: float | None
    """A step as it runs less its kernels on a GPU, operations on a CPU, at least 0 [ms]: the device
    computes nothing. None where no kernel of a GPU was seen."""
    num_launches: float
    """These kernels or operations of a step."""


class DeviceRates(Record):
    """What the device did at best, measured just before."""

    matrix_tflop_per_s: dict[str, float]
    """Matrix products by precision [10¹² FLOP/s]."""
    memory_gb_per_s: float
    """Bytes read and written by a copy within the device's memory [10⁹ byte/s]."""


class Bounds(Record):
    """What a phase or a whole step computes and moves, and how quick it could be at best."""

    gflop: float
    """Convolutions, matrix products and attention [10⁹ FLOP]."""
    moved_mib: float
    """Least bytes moved within the device, an estimate [MiB]; see `pipeline`."""
    compute_bound_ms: float
    memory_bound_ms: float
    binding: Literal["compute", "memory"]
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
    rates: DeviceRates
    bounds: Bounds | None
    """Of a step as it runs; None for a network whose operations are not counted."""
    phase_bounds: dict[Phase, Bounds]
    """Of the phases whose work is known."""
    advice: tuple[Advice, ...] = ()
