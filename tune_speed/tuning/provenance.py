"""What a certificate says of machine, code and model, asked in the process that runs the trials."""

from tune_speed.core.records import Record
from tune_speed.custom.spec import OwnSpec
from tune_speed.runtime.hardware import SystemFacts
from tune_speed.training.trial import TrialSpec
from tune_speed.tuning.code_state import CodeState, code_state


class Surroundings(Record):
    """Facts that a record does not hold."""

    machine: SystemFacts
    throttle_count: int | None
    """See `system.throttle_count`."""
    code: CodeState
    num_parameters: int | None
    """Parameters of the recipe's model; None of a training function's."""
    flop_per_sample: float | None
    """Floating-point operations of forward and backward per training sample; None: unknown."""
    dataset_checksum: str | None
    """Hash over the data set's images and labels; None of a training function's."""
    max_lr: float | None
    """Learning rate of an optimizer step before the schedule's factors; None of a training
    function's."""
    num_train: int | None
    """Samples of the training part; None of a training function's."""


def describe(spec: TrialSpec) -> Surroundings:
    """Returns what surrounds the runs of a trial; takes seconds, the first time in a process."""
    # Late: whoever only reads such facts does without torch.
    from tune_speed.data.cache import prepare
    from tune_speed.runtime.device import describe_devices, resolve_device, set_up_process
    from tune_speed.runtime.hardware import describe_system, throttle_count
    from tune_speed.training.flops import num_parameters, training_flop_per_sample
    from tune_speed.training.loop import build_model
    from tune_speed.training.objective import load_splits
    from tune_speed.training.step.gradient import AUTOCAST_DTYPES

    recipe = spec.recipe
    device = resolve_device(spec.allotment.device)
    set_up_process(device, cpu_threads=spec.allotment.cpu_threads)
    splits = load_splits(spec.workload)
    model = build_model(recipe, splits, seed=0, device=device)
    height, width, channels = splits.train.pixels.shape[1:]
    name = describe_devices(device, recipe.devices)
    return Surroundings(
        machine=describe_system(device).model_copy(update={"device": name}),
        throttle_count=throttle_count(device),
        code=code_state(),
        num_parameters=num_parameters(model),
        flop_per_sample=training_flop_per_sample(
            model,
            image_shape=(channels, height, width),
            device=device,
            autocast_dtype=AUTOCAST_DTYPES[recipe.precision],
        ),
        dataset_checksum=prepare(spec.workload.dataset).data_hash,
        max_lr=recipe.optimizer.step_lr(recipe.samples_per_step),
        num_train=len(splits.train.labels),
    )


def describe_own(spec: OwnSpec) -> Surroundings:
    """Returns what surrounds the runs of a training function, whose network nobody here knows."""
    # Late, see `describe`.
    from tune_speed.runtime.device import describe_devices, resolve_device, set_up_process
    from tune_speed.runtime.hardware import describe_system, throttle_count

    device = resolve_device(spec.allotment.device)
    set_up_process(device, cpu_threads=spec.allotment.cpu_threads)
    name = describe_devices(device, spec.devices)
    return Surroundings(
        machine=describe_system(device).model_copy(update={"device": name}),
        throttle_count=throttle_count(device),
        code=code_state(),
        num_parameters=None,
        flop_per_sample=None,
        dataset_checksum=None,
        max_lr=None,
        num_train=None,
    )
