"""Steps before a run's first one that leave no trace: warm-up, isolated step times, recording."""

import time
from collections.abc import Iterator
from itertools import repeat

import torch
from torch import nn

from tune_speed.components.metrics.device_counters import energy_meter, idle_power_w
from tune_speed.components.speedups.base import Shape
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import StepTime
from tune_speed.data.loaders.base import Loader
from tune_speed.runtime.clock import Clock, Phase, Waits
from tune_speed.runtime.device import device_key, is_out_of_memory, synchronizer
from tune_speed.runtime.hardware import strangers
from tune_speed.runtime.pooled_times import pooled, with_window
from tune_speed.runtime.process import run_delay
from tune_speed.runtime.reference_step import ReferenceStep
from tune_speed.runtime.sharing import Sharing
from tune_speed.runtime.step_timer import BLOCK_S, Meters, Steps, Turns, isolated_time
from tune_speed.training.build import Job
from tune_speed.training.precheck import too_small
from tune_speed.training.preparation import without_trace
from tune_speed.training.ranks import ALONE, JointClock, JointTurnstile, Ranks
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.batches import open_steps
from tune_speed.training.step.step import Forward, Group, Stepper, is_lone_image, micro_batch_of
from tune_speed.training.throughput import place_of, step_key
from tune_speed.training.trial import utc_now

_idle_w: dict[str, float | None] = {}


class LoneImage(ConfigError):
    """A micro-batch of one image meets a batch norm that has one value per channel there."""


def open_meters(device: torch.device, sharing: Sharing, ranks: Ranks = ALONE) -> None:
    """Gives a run the energy counters of all its devices, and what these take while they idle.

    That baseline is measured once in a process, before a training, while the others pause.
    """
    meter, key = energy_meter(device), device_key(device)
    if key not in _idle_w:
        _idle_w[key] = idle_power_w(meter, sharing)

    def summed(mine: float | None) -> float | None:
        # Ranks may share a device, whose place the first of them has.
        found = dict(reversed(ranks.gather((key, mine))))
        known = [value for value in found.values() if value is not None]
        return sum(known) if len(known) == len(found) else None

    sharing.idle_power_w = summed(_idle_w[key])
    sharing.energy_j = lambda: summed(meter())


def key_of(job: Job, loader: Loader, shape: Shape) -> str:
    return step_key(job.recipe, job.splits, shape, num_train=loader.num_samples, device=job.device)


def is_warm(job: Job, loader: Loader, shape: Shape, sharing: Sharing) -> bool:
    """Returns whether this process has taken such steps, so that another would tell nothing.

    What is compiled is so for a model's own weights, and is warmed up for each; what is recorded is
    rehearsed by itself.
    """
    if sharing.warm is None or job.recipe.compile:
        return False
    return key_of(job, loader, shape) in sharing.warm


def warm_up(job: Job, model: nn.Module, forward: Forward, loader: Loader, shape: Shape) -> None:
    """Does one optimizer step on dummy micro-batches of each size, and leaves no trace of it.

    Raises: ConfigError if the network refuses images of that size; LoneImage.
    """
    batch_size, mixed_images = micro_batch_of(job.recipe), job.recipe.augmentation.mixed_images
    share = job.ranks.share(job.recipe.samples_per_step, together=mixed_images)
    num_train = share.counts(loader.num_in(0))[job.ranks.rank]
    sizes = sorted({min(batch_size, num_train), num_train % batch_size} - {0}, reverse=True)
    with without_trace(model, device=job.device):
        stepper = Stepper.still(model, forward, job.recipe, device=job.device, is_recorded=False)
        loader.show_at(shape.height, shape.width)
        try:
            stepper.take_still(Group(sum(sizes), map(loader.dummy, sizes)), shape)
        except Exception as error:
            if is_lone_image(error):
                raise _lone_image(batch_size, loader.num_samples) from error
            whole = job.recipe.train_shape(job.splits.train.pixels.shape[1:])[:2]
            if is_out_of_memory(error) or shape[:2] == whole:
                raise
            path = "recipe.speedups.resolution"
            raise too_small(shape.height, shape.width, error, path=path) from error


def dummy_groups(recipe: Recipe, loader: Loader, shape: Shape) -> Iterator[Group]:
    """Yields a group of dummy batches for each number of samples that an epoch's steps have."""
    loader.show_at(shape.height, shape.width)
    most, full = micro_batch_of(recipe), recipe.samples_per_step * shape.growth
    for num_samples in {min(full, loader.num_in(0)), loader.num_in(0) % full} - {0}:
        sizes = [min(most, num_samples - done) for done in range(0, num_samples, most)]
        yield Group(num_samples, map(loader.dummy, sizes))


def record(job: Job, stepper: Stepper, loader: Loader) -> None:
    """Lets a stepper that records meet each kind of step, and leaves no other trace."""
    if stepper.recorder is None:
        return
    for shape in job.shapes:
        for group in dummy_groups(job.recipe, loader, shape):
            with without_trace(stepper.model, device=job.device):
                job.recipe.begin_step(stepper.model, shape)
                stepper.record(group, shape)


def isolated_phases(
    job: Job, model: nn.Module, forward: Forward, loader: Loader, *, clock: Clock, sharing: Sharing
) -> dict[Shape, Phase]:
    """Returns the isolated step time of each shape of step; none where the clock is to count."""
    ranks = job.ranks
    sharing.isolates = any(ranks.gather(sharing.isolates))
    if not sharing.isolates:
        return {}
    phases: dict[Shape, Phase] = {}
    for shape in job.shapes:
        key = ranks.broadcast(key_of(job, loader, shape))
        step_time = ranks.broadcast(sharing.known.get(key))
        if step_time is None or ranks.broadcast(key in sharing.due):
            with without_trace(model, device=job.device):
                stepper = Stepper.still(model, forward, job.recipe, device=job.device, ranks=ranks)
                window = measure(stepper, loader, shape, key=key, clock=clock, sharing=sharing)
            step_time = told(window, step_time, sharing) if window else step_time
            step_time = ranks.broadcast(step_time)
        if step_time is None:
            return {}
        phases[shape] = Phase(step_time, job.recipe.samples_per_step * shape.growth)
    return phases


def told(window: StepTime, known: StepTime | None, sharing: Sharing) -> StepTime:
    """Returns a window, together with what is known of its kind, at the usual speed."""
    if known is not None:
        return with_window(known, window)
    return pooled([window], usual=sharing.usual)[window.key]


def measure(
    stepper: Stepper, loader: Loader, shape: Shape, *, key: str, clock: Clock, sharing: Sharing
) -> StepTime | None:
    """Returns one window of steps, which `sharing` gets, or None. All ranks call this."""
    ranks = stepper.ranks
    steps = open_steps(loader, stepper.recipe, repeat((shape, 1)), Waits(), ranks=ranks)
    synchronize = synchronizer(stepper.device)
    turnstile: Turns = sharing.turnstile
    block_s, now = BLOCK_S[stepper.device.type], time.perf_counter
    if ranks.size > 1:
        key_there = device_key(stepper.device)
        turnstile = JointTurnstile(ranks, sharing.turnstile, device_key=key_there)
        # Between blocks all wait for one another.
        block_s, now = max(BLOCK_S.values()), JointClock(ranks).now

    def step() -> int:
        _, group = next(steps)
        stepper.take_still(group, shape)
        return group.num_samples

    with clock.span("compile_s"):
        delayed_s = run_delay(stepper.device)
        reference = ReferenceStep(stepper.device, synchronize=synchronize, delayed_s=delayed_s)
    timed = isolated_time(
        Steps(
            step,
            samples_per_step=stepper.recipe.samples_per_step * shape.growth,
            num_train=loader.num_samples,
            block_s=block_s,
            period=stepper.recipe.speedups.period,
            # With stochastic depth chance decides how much is computed.
            is_even=not stepper.recipe.speedups.leaves_gradients_out,
        ),
        Meters(
            synchronize=synchronize,
            now=now,
            reference=reference,
            # The same on all ranks, since it decides how many steps they take.
            delayed_s=lambda: ranks.broadcast(delayed_s()),
            strangers=lambda for_s: ranks.broadcast(
                strangers(stepper.device, for_s=for_s, tenants=sharing.pids())
            ),
            energy_j=sharing.energy_j,
        ),
        clock=clock,
        turnstile=turnstile,
        on_note=sharing.explain,
    )
    steps.close()
    if timed is None:
        return None
    window = StepTime(
        key=key,
        **timed._asdict(),
        measured_in=sharing.label,
        measured_at=utc_now(),
        place=place_of(stepper.device),
    )
    sharing.windows.append(window)
    return window


def _lone_image(batch_size: int, num_train: int) -> LoneImage:
    return LoneImage.of(
        "recipe.batch_size",
        "must leave no micro-batch with a single image, because the model's batch norm has one"
        " value per channel of it, hence no variance",
        given=f"{batch_size} with {num_train} training images",
        hint="Try another batch size, or larger images or the model's `stem: cifar`.",
    )
