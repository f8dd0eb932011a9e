"""One optimizer step: the gradient of a group of micro-batches, scaled, clipped and applied."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from tune_speed.components.models.networks.layers import rate_factors
from tune_speed.components.optim.base import with_factors
from tune_speed.components.speedups.base import Averager, Shape
from tune_speed.components.speedups.modules import losses
from tune_speed.data.loaders.base import Batch
from tune_speed.runtime.device import pacer
from tune_speed.training.ranks import ALONE, Ranks
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.recorded import MOST_BATCHES, RECORDERS, Parts, RecordedStep

AUTOCAST_DTYPES = {
    "fp32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "half": None,
    "half_fp32_norms": None,
}

Forward = Callable[[Tensor], Tensor]
"""Images (N, C, H, W) to logits (N, num_classes)."""


class Gradient(Protocol):
    """Adds micro-batches' gradients to those of the parameters."""

    def add(
        self, images: Tensor, labels: Tensor, *, divisor: float, shape: Shape, frac: float
    ) -> Tensor:
        """Adds the gradient of (sum of losses) / `divisor`, scaled; returns that sum.

        Images are (B, C, H, W), normalised; labels (B,), or targets (B, K). The step learns from
        `divisor` samples, and ends at `frac` of the run, in (0, 1].
        """


class EagerGradient:
    """Computes it operation by operation."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        forward: Forward,
        scaler: torch.amp.GradScaler,
        device: torch.device,
    ) -> None:
        """Takes the model, compiled or not, and the scaler of its loss."""
        self._recipe, self._forward, self._scaler = recipe, forward, scaler
        self._device = device

    def add(
        self, images: Tensor, labels: Tensor, *, divisor: float, shape: Shape, frac: float
    ) -> Tensor:
        speedups, forward, device = self._recipe.speedups, self._forward, self._device
        images, labels = speedups.change_batch(images, labels, shape)
        images, labels = speedups.selection.choose(images, labels, shape, losses=self._losses)
        loss = sum_of_losses(
            images, labels, self._recipe, frac=frac, forward=forward, device=device
        )
        torch.autograd.backward(self._scaler.scale(loss / divisor))
        return loss.detach()

    def _losses(self, images: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss of each image, (B,), by which a speed-up may choose among them."""
        dtype = AUTOCAST_DTYPES[self._recipe.precision]
        autocast = torch.autocast(self._device.type, dtype, enabled=dtype is not None)
        with torch.no_grad(), autocast:
            logits = self._forward(images)
        are_several = labels.ndim == 2 and self._recipe.speedups.takes_several_labels
        return losses.losses_of(logits.float(), labels, are_several=are_several)


def sum_of_losses(
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    frac: float,
    forward: Forward,
    device: torch.device,
) -> Tensor:
    """Returns the sum over samples of cross-entropy, or a speed-up's own loss [nat], in fp32."""
    dtype = AUTOCAST_DTYPES[recipe.precision]
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        logits = forward(images)
    logits, smoothing = logits.float(), recipe.label_smoothing
    # Weights that balance the classes are numbers, once a run knows its data.
    weights = recipe.class_weights if isinstance(recipe.class_weights, tuple) else ()
    loss = recipe.speedups.sum_of_losses(
        logits, labels, frac=frac, label_smoothing=smoothing, class_weights=weights
    )
    if loss is not None:
        return loss
    weight = losses.weights_on(logits.device, weights)
    return functional.cross_entropy(
        logits, labels, weight=weight, reduction="sum", label_smoothing=smoothing
    )


MOMENTUM = ("momentum_buffer", "step", "exp_avg", "exp_avg_sq")


class Group(NamedTuple):
    """The samples of one optimizer step, and the micro-batches of them that are this device's."""

    num_samples: int
    """Over all devices."""
    micro_batches: Iterable[Batch]
    counts: tuple[int, ...] = ()
    """Samples of each device, where there are several."""

    def num_learned(self, recipe: Recipe, shape: Shape) -> int:
        """Returns how many of its samples are learned from, over all devices."""
        counts, sizes = self.counts or (self.num_samples,), list[int]()
        for whole, rest in (divmod(count, micro_batch_of(recipe)) for count in counts):
            sizes += [micro_batch_of(recipe)] * whole + [rest] * (rest > 0)
        return sum(recipe.speedups.selection.kept(size, shape) for size in sizes)

    def num_batches(self, recipe: Recipe, ranks: Ranks) -> int:
        count = self.counts[ranks.rank] if self.counts else self.num_samples
        return math.ceil(count / micro_batch_of(recipe))


def micro_batch_of(recipe: Recipe) -> int:
    """Returns the samples of one micro-batch; what is `auto` is resolved by then."""
    assert isinstance(recipe.batch_size, int), "auto is resolved before training"
    return recipe.batch_size


def accumulation_of(recipe: Recipe) -> int:
    return recipe.samples_per_step // recipe.devices // micro_batch_of(recipe)


def is_lone_image(error: BaseException) -> bool:
    """Returns whether a batch norm refuses a micro-batch of one image, a pixel for it."""
    # The variance of one value is none, so torch raises instead of dividing by zero.
    return "more than 1 value per channel" in str(error)


def build_optimizer(
    model: nn.Module, recipe: Recipe, *, device: torch.device
) -> tuple[torch.optim.Optimizer, torch.amp.GradScaler]:
    """Returns the recipe's optimizer, and the scaler of the loss, which acts in fp16 only."""
    optimizer = recipe.optimizer.build(
        model,
        effective_batch_size=recipe.samples_per_step,
        # Fused: one pass over the weights, and a scaled step that does not wait for the device.
        fused=recipe.optimizer_kernels == "fused" and device.type in ("cpu", "cuda"),
    )
    if recipe.layer_decay is not None or recipe.head_lr_scale != 1.0:
        factors = rate_factors(model, recipe.layer_decay, recipe.head_lr_scale)
        optimizer.param_groups[:] = with_factors(optimizer.param_groups, factors)
    if recipe.optimizer_kernels == "foreach":
        # By itself torch takes its multi-tensor operations on a GPU only.
        for group in optimizer.param_groups:
            group.update({"foreach": True} if "foreach" in group else {})
    # 2^16 is torch's start on CUDA; on a CPU it overflows fp16 in the first step.
    init_scale = recipe.init_loss_scale or (2.0**16 if device.type == "cuda" else 2.0**10)
    scaler = torch.amp.GradScaler(
        device.type,
        enabled=recipe.precision == "fp16",
        init_scale=init_scale,
        growth_interval=recipe.loss_scale_growth_steps,
    )
    return optimizer, scaler


def update(
    optimizer: torch.optim.Optimizer, recipe: Recipe, scaler: torch.amp.GradScaler, *, scale: float
) -> None:
    """Moves the weights by their gradients, once the scales are taken off and they are clipped."""
    _unscale(optimizer, scale)
    _clip(recipe, optimizer, scaler)
    scaler.step(optimizer)
    scaler.update()


def static_scale(recipe: Recipe, divisor: float) -> float:
    """Returns the factor on the mean loss of `divisor` samples, where no scaler has one."""
    return divisor if recipe.precision == "half_fp32_norms" else 1.0


def _unscale(optimizer: torch.optim.Optimizer, scale: float) -> None:
    # Of the mean's gradient, fp16 loses in the backward pass what is below 6e-8: in the first layer
    # of ResNet-20 with batches of 512 it was 44 % off, and 7 % with that of the sum (digits).
    if scale == 1.0:
        return
    parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    gradients = [each.grad for each in parameters if each.grad is not None]
    for dtype in {each.dtype for each in gradients}:
        torch._foreach_div_([each for each in gradients if each.dtype == dtype], scale)


def _clip(recipe: Recipe, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
    if recipe.clip_value is None and recipe.clip_norm is None:
        return
    scaler.unscale_(optimizer)
    parameters = list(chain.from_iterable(g["params"] for g in optimizer.param_groups))
    if recipe.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, recipe.clip_value)
    if recipe.clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, recipe.clip_norm)


class Stepper:
    """A model with all that takes its optimizer steps."""

    def __init__(
        self,
        model: nn.Module,
        forward: Forward,
        recipe: Recipe,
        *,
        device: torch.device,
        ranks: Ranks = ALONE,
        is_recorded: bool = True,
    ) -> None:
        """Builds the recipe's optimizer, scaler and gradient.

        `forward` is the model, compiled or not, averaging gradients over ranks or not; the recipe's
        micro-batch is a number. `is_recorded`: gradients are, where the recipe has it so.
        """
        self.model, self.forward, self.recipe, self.device = model, forward, recipe, device
        self.ranks = ranks
        self.optimizer, self.scaler = build_optimizer(model, recipe, device=device)
        self.gradient: Gradient = EagerGradient(
            recipe, forward=forward, scaler=self.scaler, device=device
        )
        is_recorded = is_recorded and recipe.cuda_graph is True and device.type in RECORDERS
        own = self.model, self.optimizer, self.scaler
        has_update = recipe.records_update
        self.recorder = (
            RecordedStep(*own, device=device, with_update=has_update) if is_recorded else None
        )
        self.averager: Averager | None = None
        self._keep_pace = pacer(device)

    @classmethod
    def still(
        cls,
        model: nn.Module,
        forward: Forward,
        recipe: Recipe,
        *,
        device: torch.device,
        ranks: Ranks = ALONE,
        is_recorded: bool = True,
    ) -> Self:
        """Returns one whose steps, by `take_still`, are no part of a training."""
        stepper = cls(model, forward, recipe, device=device, ranks=ranks, is_recorded=is_recorded)
        stepper.averager = recipe.averager(model, stepper.optimizer)
        # A rate of zero takes as long, and weights that go astray may not.
        for parameters in stepper.optimizer.param_groups:
            parameters["lr"] = 0.0
        return stepper

    def record(self, group: Group, shape: Shape) -> None:
        if self.recorder is not None and group.num_batches(self.recipe, ALONE) <= MOST_BATCHES:
            batches = list(group.micro_batches)
            self.recorder.prepare(batches, (group.num_samples, shape), self._parts(group, shape))

    def learn(self, group: Group, shape: Shape, *, frac: float) -> Tensor:
        """Takes the step that ends at `frac` of the run; its sum of losses holds until the next."""
        if self.recorder is None or group.num_batches(self.recipe, ALONE) > MOST_BATCHES:
            loss_sum = self._add_gradients(group, shape, frac=frac)
            num_learned = group.num_learned(self.recipe, shape) / self.ranks.size
            scale = static_scale(self.recipe, num_learned)
            update(self.optimizer, self.recipe, self.scaler, scale=scale)
            self.optimizer.zero_grad(set_to_none=True)
        else:
            kind = group.num_samples, shape
            loss_sum = self.recorder.take(group.micro_batches, kind, self._parts(group, shape))
        self._keep_pace()
        return loss_sum

    def _add_gradients(self, group: Group, shape: Shape, *, frac: float) -> Tensor:
        """Leaves the gradient of the step at the parameters, scaled; returns its sum of losses.

        It is that of (1/M) Σ loss over all M samples of the group, whatever the sizes of its
        micro-batches. With batch norm the split still matters, because each micro-batch is
        normalised by its own statistics. Ranks average their gradients once a step; they average
        sums over ranks, hence the factor.
        """
        recipe, ranks = self.recipe, self.ranks
        loss_sum = torch.zeros((), device=self.device)
        num_learned = group.num_learned(recipe, shape)
        num_batches = group.num_batches(recipe, ranks)
        # Each micro-batch contributes its sum divided by M, never its own mean divided by their
        # number, which would weigh the samples of a ragged micro-batch more. A rank without a
        # micro-batch learns nothing from its stand-in.
        divisor = num_learned / ranks.size if num_batches else math.inf
        divisor /= static_scale(recipe, num_learned / ranks.size)
        for number, (images, labels) in enumerate(group.micro_batches, start=1):
            with ranks.syncing(self.forward, is_last=number >= num_batches):
                loss = self.gradient.add(images, labels, divisor=divisor, shape=shape, frac=frac)
            loss_sum += loss if num_batches else 0.0
        return loss_sum

    def _parts(self, group: Group, shape: Shape) -> Parts:
        recipe = self.recipe
        scale = static_scale(recipe, group.num_learned(recipe, shape))

        def gradients(batches: Iterable[Batch]) -> Tensor:
            # Of what can be recorded nothing depends on how far the run is.
            return self._add_gradients(group._replace(micro_batches=batches), shape, frac=1.0)

        return Parts(gradients, partial(update, self.optimizer, recipe, self.scaler, scale=scale))

    def take(self, group: Group, shape: Shape, *, frac: float) -> Tensor:
        """Takes a step with what goes before and after it: speed-ups, averaging of weights."""
        self.recipe.begin_step(self.model, shape)
        self._enter(shape.stage)
        loss_sum = self.learn(group, shape, frac=frac)
        if self.averager is not None:
            self.averager.update(self.model, frac=frac)
        return loss_sum

    def _enter(self, stage: int) -> None:
        """Where another part of the network is trained from now on, momentum begins at 0 again.

        That of weights which were frozen is of a loss that is long gone.
        """
        # In the groups, which are part of a checkpoint.
        groups = self.optimizer.param_groups
        if any(group.get("stage", stage) != stage for group in groups):
            for parameter in chain.from_iterable(group["params"] for group in groups):
                for name, tensor in self.optimizer.state.get(parameter, {}).items():
                    if name in MOMENTUM:
                        tensor.zero_()
        for group in groups:
            group["stage"] = stage

    def take_still(self, group: Group, shape: Shape) -> None:
        """Takes a step of which nothing is learned; averages are updated as in mid-run."""
        self.recipe.begin_step(self.model, shape)
        self.learn(group, shape, frac=1.0)
        if self.averager is not None:
            self.averager.update(self.model, frac=0.5)
