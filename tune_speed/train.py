"""The training loop: one recipe, one seed, from fresh weights to a `RunResult`."""

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import count, islice

import numpy as np
import torch
from torch import nn

from tune_speed.clock import Clock
from tune_speed.data.base import Images
from tune_speed.data.loaders import Loader, LoaderConfig, Resident
from tune_speed.data.split import Splits
from tune_speed.device import describe_device, reset_peak_memory, synchronizer
from tune_speed.errors import ConfigError, Problem
from tune_speed.optim import set_rates
from tune_speed.progress import Progress
from tune_speed.recipe import Recipe
from tune_speed.records import RunResult, StepTime
from tune_speed.sharing import Sharing
from tune_speed.step import (
    Forward,
    Group,
    build_optimizer,
    is_lone_image,
    micro_batch_of,
    take_step,
)
from tune_speed.step_timer import isolated_time
from tune_speed.throughput import throughput_key
from tune_speed.training_time import Phase
from tune_speed.trial import environment
from tune_speed.workload import Workload

Run = Generator[RunResult, str | None, RunResult]
"""Yields the result so far (`capped`) after each evaluation but the last; takes a reason to stop
there, or None to go on; returns the result."""


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
    device: torch.device,
    clock: Clock | None = None,
    sharing: Sharing | None = None,
    interrupt: Callable[[], bool] = lambda: False,
) -> Run:
    """Trains from fresh weights and says when the target held.

    The order of things is that of DESIGN, section 3: set-up, warm-up on dummy data, isolated step
    time where the device is shared (after both, model, batch statistics and random numbers are as
    before), the untrained model's evaluation, and from there the training clock, which stands
    still during evaluations and while somebody else measures. Nothing in a step waits for the
    device: losses stay on it until the next evaluation.

    Args:
        workload: what must be reached; also says when to evaluate.
        recipe: how to train; `accumulation_steps` is a number here.
        splits: training and validation images and the training part's channel statistics.
        seed: of weights, sample order, augmentation and dropout.
        device: where to train.
        clock: one that has begun with what came before; by default a new one.
        sharing: the run's place among others on the device; by default it is alone. The clock
            must have the same turnstile.
        interrupt: asked before each step; a true answer raises `Interrupted`.

    Raises: ConfigError if the untrained model already meets the target, or if the model's batch
        norm cannot take a micro-batch of the recipe (`LoneImage`); Interrupted.
    """
    clock = clock or Clock(synchronize=synchronizer(device))
    sharing = sharing or Sharing.alone()
    reset_peak_memory(device)
    with clock.span("setup_s"):
        model, loader = _set_up(recipe, splits, seed=seed, device=device)
    try:
        with clock.span("compile_s"):
            forward = _compiled(model) if recipe.compile else model
            _warm_up(model, forward, recipe, splits, device=device)
        phases = _phases(
            model, forward, loader, recipe, splits, device=device, clock=clock, sharing=sharing
        )
        with clock.span("setup_s"):
            optimizer, scaler = build_optimizer(model, recipe, device=device)
        progress = Progress(
            workload,
            recipe,
            splits,
            seed=seed,
            device=device,
            model=model,
            clock=clock,
            sharing=sharing,
            phases=phases,
        )
        progress.evaluate()
        progress.refuse_met_target()

        num_steps = progress.total_steps
        clock.start("train_s")
        for step, group in enumerate(islice(_groups(loader, recipe), num_steps), start=1):
            if interrupt():
                raise Interrupted
            clock.let_others_measure()
            factors = recipe.lr_schedule.factors(step / num_steps, step_frac=1 / num_steps)
            set_rates(optimizer, factors)
            loss_sum = take_step(
                group, recipe, forward=forward, optimizer=optimizer, scaler=scaler, device=device
            )
            progress.advance(group.num_samples, loss_sum)
            if not progress.is_due():
                continue
            clock.stop()
            progress.evaluate()
            stop_reason = progress.verdict() or (yield progress.result())
            if stop_reason:
                return progress.result(stop_reason=stop_reason)
            clock.start("train_s")
        raise AssertionError("a run's last step is evaluated, and ends it")
    finally:
        clock.release()
        loader.close()


def _set_up(
    recipe: Recipe, splits: Splits, *, seed: int, device: torch.device
) -> tuple[nn.Module, Loader]:
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = recipe.deterministic
    torch.backends.cudnn.benchmark = not recipe.deterministic
    model = build_model(recipe, splits, device=device)
    return model, _open(recipe.loader, splits.train, recipe, splits, seed=seed, device=device)


def build_model(recipe: Recipe, splits: Splits, *, device: torch.device) -> nn.Module:
    """Returns the recipe's model for the data, on the device, in the recipe's memory format."""
    _, height, width, channels = splits.train.pixels.shape
    model = recipe.model.build(
        in_channels=channels, num_classes=splits.num_classes, image_size=max(height, width)
    )
    memory_format = torch.channels_last if recipe.channels_last else torch.contiguous_format
    return model.to(device).to(memory_format=memory_format)


def open_dummy(recipe: Recipe, splits: Splits, *, num_samples: int, device: torch.device) -> Loader:
    """Returns a loader of black images of the data's shape, which go the way of real ones."""
    _, *shape = splits.train.pixels.shape
    images = Images(np.zeros((num_samples, *shape), np.uint8), np.zeros(num_samples, np.int64))
    return _open(Resident(), images, recipe, splits, seed=0, device=device)


def _open(
    loader: LoaderConfig,
    images: Images,
    recipe: Recipe,
    splits: Splits,
    *,
    seed: int,
    device: torch.device,
) -> Loader:
    return loader.open(
        images,
        mean=splits.mean,
        std=splits.std,
        batch_size=micro_batch_of(recipe),
        augmentation=recipe.augmentation,
        seed=seed,
        device=device,
        channels_last=recipe.channels_last,
    )


def _compiled(model: nn.Module) -> Forward:
    # A process that runs many trials would otherwise reach torch's limit of recompilations of one
    # function (8), after which it runs the function uncompiled.
    torch.compiler.reset()
    compiled: Forward = torch.compile(model, dynamic=False)
    return compiled


def _warm_up(
    model: nn.Module, forward: Forward, recipe: Recipe, splits: Splits, *, device: torch.device
) -> None:
    """Does one optimizer step on dummy micro-batches of each size, and leaves no trace of it."""
    num_train, batch_size = len(splits.train.labels), micro_batch_of(recipe)
    num_samples = min(batch_size, num_train) + num_train % batch_size * (num_train > batch_size)
    dummy = open_dummy(recipe, splits, num_samples=num_samples, device=device)
    with _without_trace(model, device=device):
        optimizer, scaler = build_optimizer(model, recipe, device=device)
        group = Group(num_samples, dummy.epoch(0))
        try:
            take_step(
                group, recipe, forward=forward, optimizer=optimizer, scaler=scaler, device=device
            )
        except Exception as error:
            if not is_lone_image(error):
                raise
            raise _lone_image(batch_size, num_train) from error
    dummy.close()


@contextmanager
def _without_trace(model: nn.Module, *, device: torch.device) -> Iterator[None]:
    """Puts weights, batch statistics and random numbers back as they were, after the block."""
    # On the host, so that the copy is no part of the peak on a GPU.
    state = {name: tensor.to("cpu", copy=True) for name, tensor in model.state_dict().items()}
    model.train()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    model.load_state_dict(state)


def _phases(
    model: nn.Module,
    forward: Forward,
    loader: Loader,
    recipe: Recipe,
    splits: Splits,
    *,
    device: torch.device,
    clock: Clock,
    sharing: Sharing,
) -> tuple[Phase, ...]:
    """Returns the run's phases with their isolated step times; none where the clock is to count.

    All steps of a recipe have one shape so far, so there is one phase.
    """
    if not sharing.isolates:
        return ()
    key = throughput_key(
        recipe,
        image_shape=splits.train.pixels.shape[1:],
        num_train=loader.num_samples,
        num_classes=splits.num_classes,
        device=describe_device(device),
        environment=environment(),
    )
    step_time = sharing.known.get(key) or _measure(
        model, forward, loader, recipe, key=key, device=device, clock=clock, sharing=sharing
    )
    return () if step_time is None else (Phase(step_time, recipe.samples_per_step),)


def _measure(
    model: nn.Module,
    forward: Forward,
    loader: Loader,
    recipe: Recipe,
    *,
    key: str,
    device: torch.device,
    clock: Clock,
    sharing: Sharing,
) -> StepTime | None:
    """Returns the isolated step time, measured on the run's own loader and model, or None."""
    with _without_trace(model, device=device):
        optimizer, scaler = build_optimizer(model, recipe, device=device)
        # A rate of zero takes as long, and weights that go astray may not.
        for parameters in optimizer.param_groups:
            parameters["lr"] = 0.0
        groups = _groups(loader, recipe)

        def step() -> int:
            group = next(groups)
            take_step(
                group, recipe, forward=forward, optimizer=optimizer, scaler=scaler, device=device
            )
            return group.num_samples

        timed = isolated_time(
            step,
            samples_per_step=recipe.samples_per_step,
            num_train=loader.num_samples,
            clock=clock,
            turnstile=sharing.turnstile,
            synchronize=synchronizer(device),
            now=time.perf_counter,
        )
        groups.close()
    if timed is None:
        return None
    return StepTime(key=key, **timed._asdict(), measured_in=sharing.label)


def _lone_image(batch_size: int, num_train: int) -> LoneImage:
    problem = Problem(
        path="recipe.batch_size",
        must="must leave no micro-batch with a single image, because the model's batch norm has one"
        " value per channel of it, hence no variance",
        given=f"{batch_size} with {num_train} training images",
        hint="Try another batch size, or larger images or the model's `stem: cifar`.",
    )
    return LoneImage(problems=(problem,))


def _groups(loader: Loader, recipe: Recipe) -> Generator[Group]:
    """Yields the groups of one optimizer step, epoch after epoch, without end.

    An epoch's last group may be ragged: fewer micro-batches, the last of them smaller.
    """
    for epoch in count():
        micro_batches = loader.epoch(epoch)
        for first in range(0, loader.num_samples, recipe.samples_per_step):
            num_samples = min(recipe.samples_per_step, loader.num_samples - first)
            num_batches = math.ceil(num_samples / micro_batch_of(recipe))
            yield Group(num_samples, islice(micro_batches, num_batches))
        # Also lets the loader see its epoch end, without which it would start its workers anew.
        rest = next(micro_batches, None)
        assert rest is None, "an epoch has no more batches than its number of samples"
