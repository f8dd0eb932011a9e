"""The training loop: one recipe, one seed, from fresh weights to a `RunResult`."""

import math
from collections.abc import Callable, Generator, Iterator
from itertools import chain, count, islice
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tune_speed.clock import Clock
from tune_speed.data.loaders import Loader, eval_batches
from tune_speed.data.split import Splits
from tune_speed.device import (
    describe_device,
    peak_memory_gib,
    reset_peak_memory,
    synchronizer,
)
from tune_speed.errors import ConfigError
from tune_speed.evaluate import Scores, evaluate
from tune_speed.optim import set_rates
from tune_speed.recipe import Recipe
from tune_speed.records import Evaluation, RunResult, Status
from tune_speed.workload import Workload

AUTOCAST_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}

Run = Generator[RunResult, str | None, RunResult]
"""Yields the result so far (`capped`) after each evaluation but the last; takes a reason to stop
there, or None to go on; returns the result."""


class Interrupted(Exception):
    """The run was told to stop between two evaluations; it has no result."""


class Group(NamedTuple):
    """The micro-batches of one optimizer step."""

    num_samples: int
    micro_batches: Iterator[tuple[Tensor, Tensor]]


def train(
    workload: Workload,
    recipe: Recipe,
    splits: Splits,
    *,
    seed: int,
    device: torch.device,
    clock: Clock | None = None,
    interrupt: Callable[[], bool] = lambda: False,
) -> Run:
    """Trains from fresh weights and says when the target held.

    The order of things is that of DESIGN, section 3: set-up, warm-up on dummy data (then model,
    batch statistics and random numbers are as before), the untrained model's evaluation, and from
    there the training clock, which stands still during evaluations. Nothing in a step waits for
    the device: losses stay on it until the next evaluation.

    Args:
        workload: what must be reached; also says when to evaluate.
        recipe: how to train; `accumulation_steps` is a number here.
        splits: training and validation images and the training part's channel statistics.
        seed: of weights, sample order, augmentation and dropout.
        device: where to train.
        clock: for tests; by default a new one.
        interrupt: asked before each step; a true answer raises `Interrupted`.

    Raises: ConfigError if the untrained model already meets the target; Interrupted.
    """
    clock = clock or Clock(synchronize=synchronizer(device))
    reset_peak_memory(device)
    with clock.span("setup_s"):
        model, loader = _set_up(recipe, splits, seed=seed, device=device)
    try:
        with clock.span("compile_s"):
            forward = _compiled(model, recipe)
            _warm_up(model, forward, recipe, splits, device=device)
        optimizer = recipe.optimizer.build(
            model,
            effective_batch_size=recipe.samples_per_step,
            fused=device.type == "cuda",
        )
        # 2^16 is torch's start on CUDA; on a CPU it overflows fp16 in the first step.
        scaler = torch.amp.GradScaler(
            device.type,
            enabled=recipe.precision == "fp16",
            init_scale=2.0**16 if device.type == "cuda" else 2.0**10,
        )
        progress = _Progress(workload, recipe, splits, clock=clock, model=model, device=device)
        progress.evaluate(train_loss=None)
        progress.refuse_met_target()

        loss_sum, loss_samples, stop_reason = torch.zeros((), device=device), 0, None
        total_steps = recipe.steps(num_train=len(splits.train.labels))
        clock.start("train_s")
        for step, group in enumerate(islice(_groups(loader, recipe), total_steps), start=1):
            if interrupt():
                raise Interrupted
            factors = recipe.lr_schedule.factors(step / total_steps, step_frac=1 / total_steps)
            set_rates(optimizer, factors)
            loss_sum += _step(forward, optimizer, scaler, group, recipe, device=device)
            loss_samples += group.num_samples
            progress.advance(group.num_samples)
            if not progress.is_due(is_last=step == total_steps):
                continue
            clock.stop()
            progress.evaluate(train_loss=float(loss_sum) / loss_samples)
            stop_reason = progress.verdict(is_last=step == total_steps)
            stop_reason = stop_reason or (yield progress.result(stop_reason="", seed=seed))
            if stop_reason:
                break
            loss_sum.zero_()
            loss_samples = 0
            clock.start("train_s")
        assert stop_reason is not None, "a run ends with a reason"
        return progress.result(stop_reason=stop_reason, seed=seed)
    finally:
        loader.close()


def _set_up(
    recipe: Recipe, splits: Splits, *, seed: int, device: torch.device
) -> tuple[nn.Module, Loader]:
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = recipe.deterministic
    torch.backends.cudnn.benchmark = not recipe.deterministic
    _, height, width, channels = splits.train.pixels.shape
    model = recipe.model.build(
        in_channels=channels, num_classes=splits.num_classes, image_size=max(height, width)
    )
    memory_format = torch.channels_last if recipe.channels_last else torch.contiguous_format
    model = model.to(device=device, memory_format=memory_format)
    assert recipe.batch_size is not None, "accumulation_steps: auto is resolved before training"
    loader = recipe.loader.open(
        splits.train,
        mean=splits.mean,
        std=splits.std,
        batch_size=recipe.batch_size,
        augmentation=recipe.augmentation,
        seed=seed,
        device=device,
        channels_last=recipe.channels_last,
    )
    return model, loader


def _compiled(model: nn.Module, recipe: Recipe) -> Callable[[Tensor], Tensor]:
    return torch.compile(model, dynamic=False) if recipe.compile else model


def _warm_up(
    model: nn.Module,
    forward: Callable[[Tensor], Tensor],
    recipe: Recipe,
    splits: Splits,
    *,
    device: torch.device,
) -> None:
    """Runs forward and backward once for each micro-batch shape, and leaves no trace of it."""
    _, height, width, channels = splits.train.pixels.shape
    num_train, batch_size = len(splits.train.labels), recipe.batch_size
    assert batch_size is not None
    full_and_ragged = {min(batch_size, num_train), num_train % batch_size} - {0}
    sizes = sorted(full_and_ragged) if recipe.compile else [max(full_and_ragged)]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    memory_format = torch.channels_last if recipe.channels_last else torch.contiguous_format
    devices = [device] if device.type == "cuda" else []
    model.train()
    with torch.random.fork_rng(devices=devices):
        for size in sizes:
            images = torch.zeros((size, channels, height, width), device=device)
            images = images.contiguous(memory_format=memory_format)
            labels = torch.zeros(size, dtype=torch.long, device=device)
            _loss_sum(forward, images, labels, recipe, device=device).backward()
    model.zero_grad(set_to_none=True)
    model.load_state_dict(state)


def _groups(loader: Loader, recipe: Recipe) -> Iterator[Group]:
    """Yields the groups of one optimizer step, epoch after epoch, without end.

    An epoch's last group may be ragged: fewer micro-batches, the last of them smaller.
    """
    for epoch in count():
        micro_batches = loader.epoch(epoch)
        for first in range(0, loader.num_samples, recipe.samples_per_step):
            num_samples = min(recipe.samples_per_step, loader.num_samples - first)
            assert recipe.batch_size is not None
            num_batches = math.ceil(num_samples / recipe.batch_size)
            yield Group(num_samples, islice(micro_batches, num_batches))


def _step(
    forward: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    group: Group,
    recipe: Recipe,
    *,
    device: torch.device,
) -> Tensor:
    """Does one optimizer step and returns the sum of its samples' losses, on the device.

    The gradient is that of (1/M) Σ loss over all M samples of the group, whatever the sizes of
    its micro-batches: each contributes its sum divided by M, never its own mean divided by their
    number, which would weigh the samples of a ragged micro-batch more.
    """
    loss_sum = torch.zeros((), device=device)
    for images, labels in group.micro_batches:
        loss = _loss_sum(forward, images, labels, recipe, device=device)
        scaler.scale(loss / group.num_samples).backward()
        loss_sum += loss.detach()
    if recipe.clip_norm is not None:
        scaler.unscale_(optimizer)
        parameters = chain.from_iterable(g["params"] for g in optimizer.param_groups)
        nn.utils.clip_grad_norm_(parameters, recipe.clip_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return loss_sum


def _loss_sum(
    forward: Callable[[Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    device: torch.device,
) -> Tensor:
    """Returns the sum over samples of the cross-entropy, in fp32 whatever the precision."""
    dtype = AUTOCAST_DTYPES[recipe.precision]
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        logits = forward(images)
    return functional.cross_entropy(
        logits.float(), labels, reduction="sum", label_smoothing=recipe.label_smoothing
    )


class _Progress:
    """Where a run stands: samples seen, evaluations made, and whether it has ended."""

    def __init__(
        self,
        workload: Workload,
        recipe: Recipe,
        splits: Splits,
        *,
        clock: Clock,
        model: nn.Module,
        device: torch.device,
    ) -> None:
        self.workload, self.recipe, self.splits = workload, recipe, splits
        self.clock, self.model, self.device = clock, model, device
        self.num_train = len(splits.train.labels)
        self.grid = workload.eval_every_samples or self.num_train
        self.steps = self.samples = 0
        self.evaluations: list[Evaluation] = []
        self.status = Status.CAPPED  # What a run is until it has ended by itself.

    def advance(self, num_samples: int) -> None:
        self.steps += 1
        self.samples += num_samples

    def is_due(self, *, is_last: bool) -> bool:
        """Whether to evaluate: a grid point was passed, the run ends, or its time is over."""
        last_seen = self.evaluations[-1].samples
        passed_grid = self.samples // self.grid > last_seen // self.grid
        return passed_grid or is_last or self._is_over_time()

    def _is_over_time(self) -> bool:
        return self.clock.elapsed("train_s") > self.workload.max_train_s

    def evaluate(self, *, train_loss: float | None) -> Evaluation:
        with self.clock.span("eval_s"):
            scores = self._scores()
        self.evaluations.append(
            Evaluation(
                step=self.steps,
                samples=self.samples,
                epoch=self.samples / self.num_train,
                train_s=self.clock.elapsed("train_s"),
                accuracy=scores.accuracy,
                macro_f1=scores.macro_f1,
                loss=scores.loss,
                train_loss=train_loss if train_loss is None or math.isfinite(train_loss) else None,
            )
        )
        return self.evaluations[-1]

    def _scores(self) -> Scores:
        batches = eval_batches(
            self.splits.validation,
            mean=self.splits.mean,
            std=self.splits.std,
            batch_size=self.workload.eval_batch_size,
            device=self.device,
            channels_last=self.recipe.channels_last,
        )
        dtype = AUTOCAST_DTYPES[self.recipe.precision]
        return evaluate(self.model, batches, device=self.device, autocast_dtype=dtype)

    def refuse_met_target(self) -> None:
        target, first = self.workload.target, self.evaluations[0]
        if self.workload.metric_of(first) >= target.value:
            raise ConfigError(
                f"workload.target.value must exceed what the untrained model reaches, but got"
                f" {target.value:g} and {target.metric} is {self.workload.metric_of(first):.4f}"
                " before training. Choose a higher target."
            )

    def verdict(self, *, is_last: bool) -> str | None:
        """Sets the status and returns why the run has ended, or None if it goes on."""
        evaluation, target = self.evaluations[-1], self.workload.target
        score = f"{target.metric} {self.workload.metric_of(evaluation):.4f}"
        if evaluation.train_loss is None or evaluation.loss is None:
            self.status = Status.DIVERGED
            return f"the loss is not finite after {self.steps} steps"
        if self.workload.time_to_target(self.evaluations, at_end=is_last) is not None:
            self.status = Status.REACHED
            return f"target met: {score} ≥ {target.value:g}"
        if is_last:
            self.status = Status.MISSED
            return f"the run ended with {score}, target {target.value:g}"
        if self._is_over_time():
            return f"max_train_s = {self.workload.max_train_s:g} s passed with {score}"
        return None

    def result(self, *, stop_reason: str, seed: int) -> RunResult:
        train_s = self.clock.elapsed("train_s")
        reached = self.status == Status.REACHED
        return RunResult(
            status=self.status,
            seed=seed,
            stop_reason=stop_reason,
            time_to_target_s=self._time_to_target() if reached else None,
            evaluations=tuple(self.evaluations),
            clocks=self.clock.clocks(),
            steps=self.steps,
            samples=self.samples,
            images_per_s=self.samples / train_s,
            step_time_ms=1000 * train_s / self.steps,
            peak_memory_gib=peak_memory_gib(self.device),
            batch_size=self.recipe.batch_size,
            accumulation_steps=self.recipe.samples_per_step // (self.recipe.batch_size or 1),
            device=describe_device(self.device),
        )

    def _time_to_target(self) -> float | None:
        return self.workload.time_to_target(self.evaluations, at_end=True)
