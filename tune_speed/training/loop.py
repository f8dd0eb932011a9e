"""The training loop: one recipe, one seed, from fresh weights to a `RunResult`."""

from collections.abc import Callable, Generator

from torch import nn

from tune_speed.components.optim.base import set_rates
from tune_speed.core.records import RunResult
from tune_speed.core.words import StopKind, StopReason
from tune_speed.data.loaders.base import Loader
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.device import reset_peak_memory, synchronizer
from tune_speed.runtime.sharing import Sharing
from tune_speed.training.build import Job, build_forward, build_model, open_loader, set_seed
from tune_speed.training.checkpoint.checkpoints import Checkpoints
from tune_speed.training.checkpoint.state import Training
from tune_speed.training.flops import counted
from tune_speed.training.preparation import needs_preparation, prepare
from tune_speed.training.progress import Progress
from tune_speed.training.step.batches import open_steps, samples_of_steps
from tune_speed.training.step.step import Forward, Stepper
from tune_speed.training.warm_up import is_warm, isolated_phases, key_of, record, warm_up

# Yields the result so far (`capped`) after each evaluation but the last; takes a reason to stop
# there, or None to continue; returns the result.
Run = Generator[RunResult, StopReason | None, RunResult]

# Somebody waits for an interrupted run to end.
SAVE_AT_INTERRUPTION_S = 20.0
"""Longest wait for the store of checkpoints when a run is interrupted [s]."""


class Interrupted(Exception):
    """The run was told to stop between two evaluations; it has no result."""


def train(
    job: Job,
    *,
    clock: Clock | None = None,
    sharing: Sharing | None = None,
    interrupt: Callable[[], bool] = lambda: False,
    checkpoints: Checkpoints | None = None,
    on_end: Callable[[RunResult, nn.Module], None] = lambda *_: None,
) -> Run:
    """Trains from fresh weights, or from a checkpoint, and finds when the target held.

    The order of things is that of DESIGN, section 3: set-up, warm-up on dummy data unless this
    process has taken such steps (`Sharing.warm`), isolated step time where the device is shared
    (after both, model, batch statistics and random numbers are as before), the untrained model's
    evaluation, and from there the training clock, which stops during evaluations and while
    somebody else measures.

    `clock` has begun with what came before, and has the turnstile of `sharing`, the run's place on
    the device; by default the run is alone. `interrupt` is called before each step; True raises
    `Interrupted`. `on_end` gets the result, and the model as it was evaluated last.

    Raises: ConfigError if the untrained model meets the target, or a batch norm cannot take a
        micro-batch (`LoneImage`); Interrupted; BadCheckpoint if what was found does not fit.
    """
    clock = clock or Clock(synchronize=synchronizer(job.device))
    sharing = sharing or Sharing.alone()
    reset_peak_memory(job.device)
    with clock.span("setup_s"):
        model, loader = set_up(job)
    try:
        training = _before_first_step(job, model, loader, clock, sharing, checkpoints)
        return (yield from _train(training, interrupt, checkpoints, on_end))
    finally:
        clock.release()
        loader.close()


def set_up(job: Job) -> tuple[nn.Module, Loader]:
    recipe, device = job.recipe, job.device
    set_seed(recipe, job.seed)
    model = build_model(recipe, job.splits, seed=job.seed, device=device)
    job.ranks.seed(job.seed)
    mixed_images = recipe.augmentation.mixed_images
    share = job.ranks.share(recipe.samples_per_step, together=mixed_images)
    images = job.splits.train
    loader = open_loader(recipe, images, job.splits, seed=job.seed, device=device, share=share)
    return model, loader


def _before_first_step(
    job: Job,
    model: nn.Module,
    loader: Loader,
    clock: Clock,
    sharing: Sharing,
    checkpoints: Checkpoints | None,
) -> Training:
    """Returns the run before its first step, or where its checkpoint is; see `train`."""
    recipe, device = job.recipe, job.device
    earlier = checkpoints.progress if checkpoints else None
    with clock.span("compile_s"):
        forward = build_forward(model, recipe)
        may_skip = recipe.speedups.leaves_gradients_out or any(
            shape.is_bias_frozen or shape.is_frozen for shape in job.shapes
        )
        averaging = job.ranks.wrap(forward, may_skip=may_skip)
        for shape in job.shapes:
            if not is_warm(job, loader, shape, sharing):
                warm_up(job, model, averaging, loader, shape)
    if earlier is None:
        phases = isolated_phases(job, model, averaging, loader, clock=clock, sharing=sharing)
    else:
        phases = earlier.phases_by_shape()
    if sharing.warm is not None:
        sharing.warm.update(key_of(job, loader, shape) for shape in job.shapes)
    with clock.span("setup_s"):
        flops = counted(job, model)
        stepper = Stepper(model, averaging, recipe, device=device, ranks=job.ranks)
    progress = Progress(
        job, model=model, clock=clock, sharing=sharing, phases=phases, flop_per_sample=flops
    )
    training = Training(job, model, loader, stepper, progress)
    recipe.speedups.begin(model, seed=job.seed)
    recipe.begin_step(model, job.shapes[0])
    if earlier is None:
        _begin(training, forward)
    stepper.averager = progress.evaluator.averager = recipe.averager(model, stepper.optimizer)
    progress.figures = getattr(stepper.optimizer, "figures", progress.figures)
    if checkpoints is not None and earlier is not None:
        with clock.span("setup_s"):
            checkpoints.restore(training)
            # What was read is no part of the run's peak.
            reset_peak_memory(device)
    with clock.span("compile_s"):
        # The optimizer's state has its place by now.
        record(job, stepper, loader)
    return training


def _begin(training: Training, forward: Forward) -> None:
    """Does what comes before the first step. Raises: ConfigError if the untrained model does it."""
    progress = training.progress
    progress.evaluate()
    progress.refuse_met_target()
    if needs_preparation(training.job.recipe):
        with progress.time.clock.span("train_s"):
            training.scores = prepare(
                training.job,
                training.model,
                training.loader,
                forward,
                take=progress.time.take_before,
            )
        progress.time.begin()


def _train(
    training: Training,
    interrupt: Callable[[], bool],
    checkpoints: Checkpoints | None,
    on_end: Callable[[RunResult, nn.Module], None],
) -> Run:
    job, progress, stepper = training.job, training.progress, training.stepper
    recipe, clock, num_steps = job.recipe, progress.time.clock, progress.total_steps
    if stop_reason := job.ranks.broadcast(_too_long(training)):
        result = progress.result(stop_reason=stop_reason)
        on_end(result, progress.evaluator.model)
        return result
    with clock.span("setup_s"):
        steps = open_steps(
            training.loader,
            recipe,
            job.step_schedule,
            progress.time.waits,
            ranks=job.ranks,
            num_done=progress.steps,
        )
    clock.start("train_s")
    for step, (shape, group) in enumerate(steps, start=progress.steps + 1):
        if interrupt():
            clock.stop()
            # Of several ranks none saves: all of them would have to call at once.
            if checkpoints is not None and job.ranks.size == 1 and progress.steps:
                checkpoints.save(training, wait_s=SAVE_AT_INTERRUPTION_S)
            raise Interrupted
        clock.let_others_measure()
        factors = recipe.lr_schedule.factors(
            step / num_steps, step_frac=1 / num_steps, losses=progress.losses
        )
        set_rates(stepper.optimizer, factors)
        # Nothing in a step waits for the device: losses stay on it until the next evaluation.
        loss_sum = stepper.take(group, shape, frac=step / num_steps)
        progress.advance(shape, group.num_samples, loss_sum, group.num_learned(recipe, shape))
        if not progress.is_due():
            continue
        clock.stop()
        progress.evaluate()
        if stop_reason := (yield from _stop_reason(training, checkpoints)):
            result = progress.result(stop_reason=stop_reason)
            on_end(result, progress.evaluator.model)
            return result
        clock.start("train_s")
    raise AssertionError("a run's last step is evaluated, and ends it")


def _too_long(training: Training) -> StopReason | None:
    """Returns why a run cannot end in time by the lower ends of its step times; None: it may."""
    job, progress = training.job, training.progress
    limit_s = job.workload.max_train_s
    if job.workload.mode != "fixed_length" or progress.steps or not progress.time.phases:
        return None
    least_s = planned_s = progress.time.init_s
    for shape, num_samples in samples_of_steps(training.loader, job.recipe, job.step_schedule):
        phase = progress.time.phases[shape]
        share = num_samples / phase.samples_per_step
        least_s += share * phase.step_time.low_s
        planned_s += share * phase.step_time.step_s
    if least_s <= limit_s:
        return None
    return StopReason.of(StopKind.TOO_LONG, planned_s=planned_s, limit_s=limit_s)


def _stop_reason(
    training: Training, checkpoints: Checkpoints | None
) -> Generator[RunResult, StopReason | None, StopReason | None]:
    """Returns why the run ends here, by itself or as the caller sent; may save it before."""
    ranks, progress = training.job.ranks, training.progress
    reason = ranks.broadcast(progress.verdict())
    if reason:
        return reason
    if checkpoints is not None:
        checkpoints.save_if_due(training)
    if ranks.is_first:
        reason = yield progress.result()
    return ranks.broadcast(reason)
