"""The training loop: one recipe, one seed, from fresh weights to a `RunResult`."""

import time
from collections.abc import Callable, Generator, Iterable
from itertools import repeat

import numpy as np
import torch
from torch import nn

from tune_speed.components.models.networks.half import Half
from tune_speed.components.optim import set_rates
from tune_speed.components.speedups.base import Shape
from tune_speed.core.errors import ConfigError, Problem, first_line
from tune_speed.core.records import RunResult, StepTime
from tune_speed.data.base import Images
from tune_speed.data.loaders.base import Loader, LoaderConfig, Resident
from tune_speed.data.orders.share import WHOLE, Share
from tune_speed.data.split import Splits
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.device import (
    describe_device,
    is_out_of_memory,
    reset_peak_memory,
    synchronizer,
)
from tune_speed.runtime.sharing import Sharing
from tune_speed.runtime.step_timer import isolated_time
from tune_speed.runtime.training_clock import Phase, Waits
from tune_speed.training.checkpoint.checkpoints import Checkpoints
from tune_speed.training.checkpoint.state import Training
from tune_speed.training.preparation import needs_preparation, prepare, without_trace
from tune_speed.training.progress import Part, Progress
from tune_speed.training.ranks import ALONE, Ranks
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.batches import open_steps
from tune_speed.training.step.compilation import compiled
from tune_speed.training.step.gradient import Forward, Gradient, RecordedGradient, gradient_of
from tune_speed.training.step.step import (
    Group,
    build_optimizer,
    is_lone_image,
    micro_batch_of,
    open_order,
    take_step,
)
from tune_speed.training.throughput import throughput_key
from tune_speed.training.trial import environment
from tune_speed.training.workload import Workload

Run = Generator[RunResult, str | None, RunResult]
"""Yields the result so far (`capped`) after each evaluation but the last; takes a reason to stop
there, or None to go on; returns the result."""
StepSchedule = tuple[tuple[Shape, int], ...]
"""A run as shapes of steps, each with its number of steps in a row."""

SAVE_AT_INTERRUPTION_S = 20.0
"""Longest wait for the store of checkpoints when a run is interrupted [s]: somebody waits for it to
end."""


class Interrupted(Exception):
    """The run was told to stop between two evaluations; it has no result."""


class LoneImage(ConfigError):
    """A micro-batch of one image meets a batch norm that has one value per channel there."""


def train(
    workload: Workload,
    recipe: Recipe,
    splits: Splits,
    *,
    seed: int,
    evaluated_on: Part = "validation",
    device: torch.device,
    clock: Clock | None = None,
    sharing: Sharing | None = None,
    interrupt: Callable[[], bool] = lambda: False,
    ranks: Ranks = ALONE,
    checkpoints: Checkpoints | None = None,
    on_end: Callable[[RunResult, nn.Module], None] = lambda *_: None,
) -> Run:
    """Trains from fresh weights, or from where a checkpoint stands, and says when the target held.

    The order of things is that of DESIGN, section 3: set-up, warm-up on dummy data unless this
    process has taken such steps (`Sharing.warm`), isolated step time where the device is shared
    (after both, model, batch statistics and random numbers are as before), the untrained model's
    evaluation, and from there the training clock, which stands still during evaluations and while
    somebody else measures. Nothing in a step waits for the device: losses stay on it until the next
    evaluation.

    Args:
        workload: what must be reached; also says when to evaluate.
        recipe: how to train; `accumulation_steps` is a number here.
        splits: training and validation images and the training part's channel statistics.
        seed: of weights, sample order, augmentation and dropout.
        evaluated_on: the part on which the target must hold. A schedule that follows the loss
            follows that of the validation part all the same.
        device: where to train.
        clock: one that has begun with what came before; by default a new one.
        sharing: the run's place among others on the device; by default it is alone. The clock
            must have the same turnstile.
        interrupt: asked before each step; a true answer raises `Interrupted`.
        ranks: this process's place among those of the recipe's devices. Rank 0 alone evaluates,
            yields and is told to stop.
        checkpoints: where the run is saved after evaluations, and when it is interrupted; what
            they found is gone on with.
        on_end: gets the result of a run that ends, and the model as it was evaluated last.

    Raises: ConfigError if the untrained model already meets the target, or if the model's batch
        norm cannot take a micro-batch of the recipe (`LoneImage`); Interrupted; BadCheckpoint if
        what was found does not fit.
    """
    clock = clock or Clock(synchronize=synchronizer(device))
    sharing = sharing or Sharing.alone()
    speedups = recipe.speedups
    step_schedule = step_schedule_of(recipe, splits)
    earlier = checkpoints.progress if checkpoints else None
    reset_peak_memory(device)
    with clock.span("setup_s"):
        model, loader = _set_up(recipe, splits, seed=seed, device=device, ranks=ranks)
    try:
        with clock.span("compile_s"):
            own_forward = build_forward(model, recipe)
            forward = ranks.wrap(own_forward, may_skip=speedups.leaves_gradients_out)
            key_of = _key_of(recipe, splits, loader, device=device)
            for shape in dict(step_schedule):
                if not _is_warm(shape, key_of, recipe, sharing):
                    _warm_up(model, forward, recipe, splits, shape, device=device, ranks=ranks)
        if earlier is not None:
            phases = earlier.phases_by_shape()
        else:
            phases = _phases(
                model,
                forward,
                loader,
                recipe,
                key_of,
                shapes=dict(step_schedule),
                device=device,
                clock=clock,
                sharing=sharing,
            )
        if sharing.warm is not None:
            sharing.warm.update(map(key_of, dict(step_schedule)))
        with clock.span("setup_s"):
            optimizer, scaler = build_optimizer(model, recipe, device=device)
        gradient = gradient_of(recipe, model, forward=forward, scaler=scaler, device=device)
        with clock.span("compile_s"):
            _record(
                gradient, model, recipe, splits, loader, shapes=dict(step_schedule), device=device
            )
        progress = Progress(
            workload,
            recipe,
            splits,
            seed=seed,
            evaluated_on=evaluated_on,
            device=device,
            model=model,
            clock=clock,
            sharing=sharing,
            step_schedule=step_schedule,
            phases=phases,
            ranks=ranks,
        )
        training = Training(
            recipe, splits, seed, device, model, loader, optimizer, scaler, progress, ranks
        )
        speedups.begin(model, seed=seed)
        speedups.begin_step(model, step_schedule[0][0])
        if earlier is None:
            _begin(training, own_forward)
        averager = progress.averager = speedups.averager(model)
        with clock.span("setup_s"):
            if earlier is not None:
                _go_on(training, checkpoints)
            steps = open_steps(
                loader,
                recipe,
                step_schedule,
                progress.waits,
                ranks=ranks,
                num_done=progress.steps,
            )
        num_steps = progress.total_steps
        clock.start("train_s")
        for step, (shape, group) in enumerate(steps, start=progress.steps + 1):
            if interrupt():
                _save_at_interruption(training, checkpoints)
                raise Interrupted
            clock.let_others_measure()
            factors = recipe.lr_schedule.factors(
                step / num_steps, step_frac=1 / num_steps, losses=progress.losses
            )
            set_rates(optimizer, factors)
            speedups.begin_step(model, shape)
            loss_sum = take_step(
                group,
                recipe,
                shape=shape,
                frac=step / num_steps,
                forward=forward,
                optimizer=optimizer,
                scaler=scaler,
                device=device,
                ranks=ranks,
                gradient=gradient,
            )
            if averager is not None:
                averager.update(model, frac=step / num_steps)
            progress.advance(shape, group.num_samples, loss_sum, group.num_learned(recipe, shape))
            if not progress.is_due():
                continue
            clock.stop()
            progress.evaluate()
            stop_reason = ranks.broadcast(progress.verdict())
            if not stop_reason:
                if checkpoints is not None:
                    checkpoints.save_if_due(training)
                if ranks.is_first:
                    stop_reason = yield progress.result()
                stop_reason = ranks.broadcast(stop_reason)
            if stop_reason:
                result = progress.result(stop_reason=stop_reason)
                on_end(result, progress.evaluated_model)
                return result
            clock.start("train_s")
        raise AssertionError("a run's last step is evaluated, and ends it")
    finally:
        clock.release()
        loader.close()


def _begin(training: Training, forward: Forward) -> None:
    """Evaluates the untrained model, and does what comes before the first step.

    Raises: ConfigError if the untrained model meets the target.
    """
    progress = training.progress
    progress.evaluate()
    progress.refuse_met_target()
    if not needs_preparation(training.recipe):
        return
    with progress.clock.span("train_s"):
        training.scores = prepare(
            training.model,
            training.loader,
            training.recipe,
            training.splits,
            forward=forward,
            seed=training.seed,
            device=training.device,
            ranks=training.ranks,
        )
    progress.begin()


def _go_on(training: Training, checkpoints: Checkpoints | None) -> None:
    """Makes the run the one that was saved. Raises: BadCheckpoint."""
    assert checkpoints is not None
    checkpoints.restore(training)
    reset_peak_memory(training.device)  # What was read is no part of the run's peak.


def _save_at_interruption(training: Training, checkpoints: Checkpoints | None) -> None:
    """Saves the run between two steps, wherever it is; of several ranks none is asked."""
    training.progress.clock.stop()
    if checkpoints is not None and training.ranks.size == 1 and training.progress.steps:
        checkpoints.save(training, wait_s=SAVE_AT_INTERRUPTION_S)


def step_schedule_of(recipe: Recipe, splits: Splits) -> StepSchedule:
    """Returns the run as shapes of steps, each with its number of steps in a row."""
    num_train, height, width, _ = splits.train.pixels.shape
    return recipe.step_schedule(num_train=num_train, height=height, width=width)


def _set_up(
    recipe: Recipe, splits: Splits, *, seed: int, device: torch.device, ranks: Ranks
) -> tuple[nn.Module, Loader]:
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = recipe.deterministic
    torch.backends.cudnn.benchmark = not recipe.deterministic
    recipe.speedups.read_data()
    model = build_model(recipe, splits, seed=seed, device=device)
    ranks.seed(seed)
    share = ranks.share(recipe.samples_per_step)
    loader = open_loader(
        recipe.loader, splits.train, recipe, splits, seed=seed, device=device, share=share
    )
    return model, loader


def build_model(recipe: Recipe, splits: Splits, *, seed: int, device: torch.device) -> nn.Module:
    """Returns the recipe's model for the data, on the device, in the recipe's memory format."""
    _, height, width, channels = splits.train.pixels.shape
    model = recipe.model.build(
        in_channels=channels, num_classes=splits.num_classes, image_size=max(height, width)
    )
    model = recipe.speedups.change_model(model, num_classes=splits.num_classes, seed=seed)
    memory_format = torch.channels_last if recipe.is_channels_last else torch.contiguous_format
    model = model.to(device).to(memory_format=memory_format)
    if recipe.precision not in ("half", "half_fp32_norms"):
        return model
    return Half(model, has_fp32_norms=recipe.precision == "half_fp32_norms")


def build_forward(model: nn.Module, recipe: Recipe) -> Forward:
    """Returns what computes the model's logits: compiled where the recipe asks for it."""
    assert recipe.compile != "auto", "it is settled before training"
    return compiled(model, mode=recipe.compile_mode) if recipe.compile else model


def open_dummy(recipe: Recipe, splits: Splits, *, num_samples: int, device: torch.device) -> Loader:
    """Returns a loader of black images of the data's shape, which go the way of real ones."""
    _, *shape = splits.train.pixels.shape
    images = Images(np.zeros((num_samples, *shape), np.uint8), np.zeros(num_samples, np.int64))
    return open_loader(Resident(), images, recipe, splits, seed=0, device=device)


def open_loader(
    loader: LoaderConfig,
    images: Images,
    recipe: Recipe,
    splits: Splits,
    *,
    seed: int,
    device: torch.device,
    share: Share = WHOLE,
) -> Loader:
    """Returns a loader of the images, in the recipe's order."""
    return loader.open(
        images,
        mean=splits.mean,
        std=splits.std,
        batch_size=micro_batch_of(recipe),
        augmentation=recipe.augmentation,
        seed=seed,
        device=device,
        channels_last=recipe.is_channels_last,
        order=open_order(recipe, images, seed=seed),
        share=share,
    )


def _warm_up(
    model: nn.Module,
    forward: Forward,
    recipe: Recipe,
    splits: Splits,
    shape: Shape,
    *,
    device: torch.device,
    ranks: Ranks = ALONE,
) -> None:
    """Does one optimizer step on dummy micro-batches of each size, and leaves no trace of it."""
    share, batch_size = ranks.share(recipe.samples_per_step), micro_batch_of(recipe)
    num_train = share.counts(len(splits.train.labels))[ranks.rank]
    num_samples = min(batch_size, num_train) + num_train % batch_size * (num_train > batch_size)
    dummy = open_dummy(recipe, splits, num_samples=num_samples, device=device)
    with without_trace(model, device=device):
        take = step_taker(model, forward, recipe, device=device, is_recorded=False)
        try:
            take(Group(num_samples, dummy.epoch(0)), shape)
        except Exception as error:
            if is_lone_image(error):
                raise _lone_image(batch_size, len(splits.train.labels)) from error
            if is_out_of_memory(error) or shape[:2] == splits.train.pixels.shape[1:3]:
                raise
            raise _too_small(shape, error) from error
    dummy.close()


def _record(
    gradient: Gradient,
    model: nn.Module,
    recipe: Recipe,
    splits: Splits,
    loader: Loader,
    *,
    shapes: Iterable[Shape],
    device: torch.device,
) -> None:
    """Lets a gradient that is recorded meet each kind of micro-batch, and leaves no other trace."""
    if not isinstance(gradient, RecordedGradient):
        return
    for shape in shapes:
        full = recipe.samples_per_step * shape.growth
        for num_samples in {min(full, loader.num_samples), loader.num_samples % full} - {0}:
            dummy = open_dummy(recipe, splits, num_samples=num_samples, device=device)
            with without_trace(model, device=device):
                recipe.speedups.begin_step(model, shape)
                group = Group(num_samples, dummy.epoch(0))
                divisor = group.num_learned(recipe, shape)
                gradient.begin()
                for images, labels in group.micro_batches:
                    gradient.add(images, labels, divisor=divisor, shape=shape, frac=1.0)
                model.zero_grad()  # Other steps than recorded ones may come before the first.
            dummy.close()


def step_taker(
    model: nn.Module,
    forward: Forward,
    recipe: Recipe,
    *,
    device: torch.device,
    is_recorded: bool = True,
) -> Callable[[Group, Shape], None]:
    """Returns what takes a step that is no part of the training, with an optimizer of its own.

    With `is_recorded` False its gradients are not recorded, though the recipe asks for it.
    """
    optimizer, scaler = build_optimizer(model, recipe, device=device)
    recorded = gradient_of(recipe, model, forward=forward, scaler=scaler, device=device)
    averager = recipe.speedups.averager(model)
    # A rate of zero takes as long, and weights that go astray may not.
    for parameters in optimizer.param_groups:
        parameters["lr"] = 0.0

    def take(group: Group, shape: Shape) -> None:
        recipe.speedups.begin_step(model, shape)
        take_step(
            group,
            recipe,
            shape=shape,
            frac=1.0,
            forward=forward,
            optimizer=optimizer,
            scaler=scaler,
            device=device,
            gradient=recorded if is_recorded else None,
        )
        if averager is not None:
            averager.update(model, frac=0.5)

    return take


def _key_of(
    recipe: Recipe, splits: Splits, loader: Loader, *, device: torch.device
) -> Callable[[Shape], str]:
    """Returns what says the throughput key of a shape of step."""
    return lambda shape: throughput_key(
        recipe,
        shape=shape,
        image_shape=splits.train.pixels.shape[1:],
        num_train=loader.num_samples,
        num_classes=splits.num_classes,
        device=describe_device(device),
        environment=environment(),
    )


def _is_warm(
    shape: Shape, key_of: Callable[[Shape], str], recipe: Recipe, sharing: Sharing
) -> bool:
    """Returns whether this process has taken such steps, so that another one would tell nothing.

    What is compiled or recorded is so for a model's own weights, and is warmed up for each.
    """
    if sharing.warm is None or recipe.compile or recipe.cuda_graph:
        return False
    return key_of(shape) in sharing.warm


def _phases(
    model: nn.Module,
    forward: Forward,
    loader: Loader,
    recipe: Recipe,
    key_of: Callable[[Shape], str],
    *,
    shapes: Iterable[Shape],
    device: torch.device,
    clock: Clock,
    sharing: Sharing,
) -> dict[Shape, Phase]:
    """Returns the isolated step time of each shape of step; none where the clock is to count."""
    if not sharing.isolates or recipe.devices > 1:
        return {}  # Where several devices train, the clock counts: none can be measured alone.
    phases: dict[Shape, Phase] = {}
    for shape in shapes:
        key = key_of(shape)
        step_time = sharing.known.get(key) or _measure(
            model,
            forward,
            loader,
            recipe,
            shape,
            key=key,
            device=device,
            clock=clock,
            sharing=sharing,
        )
        if step_time is None:
            return {}
        phases[shape] = Phase(step_time, recipe.samples_per_step * shape.growth)
    return phases


def _measure(
    model: nn.Module,
    forward: Forward,
    loader: Loader,
    recipe: Recipe,
    shape: Shape,
    *,
    key: str,
    device: torch.device,
    clock: Clock,
    sharing: Sharing,
) -> StepTime | None:
    """Returns the isolated step time, measured on the run's own loader and model, or None."""
    with without_trace(model, device=device):
        take = step_taker(model, forward, recipe, device=device)
        steps = open_steps(loader, recipe, repeat((shape, 1)), Waits())

        def step() -> int:
            _, group = next(steps)
            take(group, shape)
            return group.num_samples

        timed = isolated_time(
            step,
            samples_per_step=recipe.samples_per_step * shape.growth,
            num_train=loader.num_samples,
            clock=clock,
            turnstile=sharing.turnstile,
            synchronize=synchronizer(device),
            now=time.perf_counter,
        )
        steps.close()
    if timed is None:
        return None
    return StepTime(key=key, **timed._asdict(), measured_in=sharing.label)


def _too_small(shape: Shape, error: Exception) -> ConfigError:
    problem = Problem(
        path="recipe.speedups.resolution",
        must=f"must show the network images that it can take, but {shape.height}x{shape.width}"
        f" pixels fail with {first_line(error)}",
        hint="Begin with larger images, or take another model.",
    )
    return ConfigError(problems=(problem,))


def _lone_image(batch_size: int, num_train: int) -> LoneImage:
    problem = Problem(
        path="recipe.batch_size",
        must="must leave no micro-batch with a single image, because the model's batch norm has one"
        " value per channel of it, hence no variance",
        given=f"{batch_size} with {num_train} training images",
        hint="Try another batch size, or larger images or the model's `stem: cifar`.",
    )
    return LoneImage(problems=(problem,))
