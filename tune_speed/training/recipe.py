"""Everything that a search may change about a training."""

import math
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tune_speed.components.models import MODELS
from tune_speed.components.models.base import ModelConfig
from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.optim.base import OptimizerConfig, given_momenta, momenta
from tune_speed.components.schedules import SCHEDULES
from tune_speed.components.schedules.base import Constant, ScheduleConfig
from tune_speed.components.speedups.base import Averager, Shape, SpeedupConfig
from tune_speed.components.speedups.chosen import Speedups, conflicts
from tune_speed.core.config import Component, Config, left_out
from tune_speed.core.errors import ConfigError
from tune_speed.data import LOADERS, ORDERS
from tune_speed.data.augmentation.config import Augmentation
from tune_speed.data.loaders.configs import LoaderConfig, Resident, Streaming
from tune_speed.data.orders import Curriculum, OrderConfig, Shuffle

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import nn
    from torch.optim import Optimizer

Positive = Annotated[int, Field(gt=0)]
# Settled by a measurement before training, see `step_choices`.
Auto = Literal["auto"]
Weights = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(strict=False, min_length=2)]
ClassWeights = Literal["none", "balanced"] | Weights
CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
LEAST_EPS = 2.5e-4
"""Least eps of an optimizer in fp16: 2^-12, whose square is the least number there, rounded up."""
WITHOUT_GRAPHS: dict[CompileMode, CompileMode] = {
    "reduce-overhead": "default",
    "max-autotune": "max-autotune-no-cudagraphs",
}
"""Modes of `torch.compile` that record CUDA graphs themselves, and the same without."""


SINCE: tuple[tuple[str, object], ...] = (
    ("matmul_precision", "highest"),
    ("lr_scales", []),
    ("affine", 0.0),
    ("switch_steps_in_row", 1),
    ("which", "random"),
    ("drop_last", False),
    ("bias_frac", 1.0),
)
"""Fields that runs of earlier versions lack, with the value that they ran with."""
FORMERLY: tuple[tuple[str, object, object], ...] = (
    ("cuda_graph", "auto", False),
    ("deterministic", False, True),
)
"""Defaults, and what they were: either way a run learns the same, and goes on."""


def steps_of_pass(num_train: int, samples_per_step: int, *, drop_last: bool) -> int:
    """Returns the optimizer steps of a pass over the training part, at least 1."""
    whole, rest = divmod(num_train, samples_per_step)
    return max(1, whole if drop_last else whole + (rest > 0))


class Freeze(Config):
    """First layers that are frozen for so long: they run without gradients, in evaluation mode."""

    until: str
    """First module that is trained from the beginning, by its name in the network, such as `layer4`
    or `blocks.10`; what is before it is frozen. `head`: the layer that gives the logits."""
    epochs: Annotated[float, Field(gt=0)] | None = None
    """Passes over the training part until all layers are trained; need not be whole."""
    steps: Positive | None = None
    """Optimizer steps until then, in place of `epochs`."""

    @model_validator(mode="after")
    def _is_given_once(self) -> Self:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("freeze must have epochs or steps, and not both")
        return self


class Recipe(Config):
    """One way to train.

    Batch words: `batch_size` is one micro-batch on one device, `accumulation_steps` the
    micro-batches of one optimizer step on it, and
    `effective_batch_size = batch_size · accumulation_steps · devices` the samples of one step.
    Give either the first two, or `effective_batch_size` with `accumulation_steps: auto`: then the
    fastest micro-batch that fits is measured before training.
    """

    # The effective batch size is implied by other fields, once `auto` is resolved.
    untimed_fields = frozenset({"lr_schedule", "epochs", "effective_batch_size", "order"})
    untimed_fields |= {"drop_last", "init_loss_scale", "loss_scale_growth_steps"}
    untimed_fields |= {"eval_size", "crop_pct", "reinit_head"}
    switch_fields = frozenset({"label_smoothing", "class_weights", "clip_norm", "clip_value"})
    switch_fields |= {"layer_decay", "head_lr_scale"}

    model: Annotated[ModelConfig, Component(MODELS)]
    """The network."""
    optimizer: Annotated[OptimizerConfig, Component(OPTIMIZERS)]
    """The optimizer and its rates."""
    lr_schedule: Annotated[ScheduleConfig, Component(SCHEDULES)] = Constant()
    """How rates change over the run."""
    epochs: Annotated[float, Field(gt=0, le=100_000)]
    """Passes over the training part; need not be whole."""
    batch_size: Positive | Literal["auto"] | None = None
    """Samples of one micro-batch on one device; `auto`, which a search does not take: the smallest
    that is as fast as any that fits. Then give the optimizer's rate `lr_per_examples`."""
    accumulation_steps: Positive | Literal["auto"] = 1
    """Micro-batches of one optimizer step; `auto` needs `effective_batch_size`."""
    effective_batch_size: Positive | None = None
    """Samples of one optimizer step; only with `accumulation_steps: auto`."""
    devices: Annotated[int, Field(gt=0, le=64)] = 1
    """Devices that train together, each on its own micro-batches, with the gradient of all."""
    precision: Literal["fp32", "bf16", "fp16", "half", "half_fp32_norms"] = "fp32"
    """Arithmetic of forward and backward: autocast for `bf16` and `fp16`, which needs CUDA; `half`:
    weights and all in fp16 without a master copy or loss scaling, a negative control;
    `half_fp32_norms`: the same but for normalisation layers, and with the gradient of the sum of
    losses, divided before the optimizer's step, as in the CIFAR-10 speed records."""
    matmul_precision: Literal["highest", "high"] = "highest"
    """Of matrix products in fp32, in torch's words; `high`: TF32, with 10 bits of mantissa, on GPUs
    that have it. Convolutions use TF32 as torch's own flag says: by default where they can."""
    init_loss_scale: Annotated[float, Field(gt=0)] | None = None
    """First loss scale, in `fp16` only; null: 65536 on CUDA, 1024 elsewhere."""
    loss_scale_growth_steps: Annotated[int, Field(gt=0)] = 2000
    """Optimizer steps without overflow after which the loss scale doubles, in `fp16` only."""
    order: Annotated[OrderConfig, Component(ORDERS)] = Shuffle()
    """In which order, and how often, samples are seen."""
    drop_last: bool = False
    """Leave out an epoch's last optimizer step where too few samples are left for a whole one."""
    image_size: Annotated[int, Field(ge=8, le=4096)] | None = left_out(None)
    """Height and width at which the network is trained [pixels]: crops of the stored images are
    resized to it; null: as they are stored, where all have one size."""
    eval_size: Annotated[int, Field(ge=8, le=4096)] | None = left_out(None)
    """Height and width at which it is evaluated [pixels]; null: `image_size`."""
    crop_pct: Annotated[float, Field(gt=0, le=1)] = left_out(1.0)
    """Share of an image's shorter side that evaluation shows, as a square in the centre; timm's
    `--crop-pct`, where ImageNet's customary 224 of 256 pixels are 0.875."""
    augmentation: Augmentation = Augmentation()
    """Changes to training images."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the target distribution that is spread evenly over the classes."""
    class_weights: ClassWeights = left_out("none")
    """Weight of each class in cross-entropy and `bce`, as a list; none: all 1; balanced: Σ n / (K
    n_c) with n_c training images of class c, the mean over which is 1, as scikit-learn has it."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """Largest norm of the whole gradient; null: not clipped."""
    clip_value: Annotated[float, Field(gt=0)] | None = None
    """Largest size of each gradient by itself; null: not clipped. Acts before `clip_norm`."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None = left_out(None)
    """Factor on the rate from each layer to the one before it, in (0, 1], usually 0.65 to 0.9: of
    timm's own groups of layers, and elsewhere of blocks in their order. null: one rate."""
    head_lr_scale: Annotated[float, Field(gt=0, le=1e6)] = left_out(1.0)
    """Factor on the rate of the layer that gives the logits, above 0: it starts fresh."""
    freeze: Freeze | None = left_out(None)
    """First layers that are not trained at first; their steps are faster and take less memory."""
    reinit_head: bool = left_out(False)
    """Start the layer that gives the logits fresh, although loaded weights have one of its size."""
    activation_checkpointing: bool = left_out(False)
    """Compute activations within a block again in the backward pass in place of keeping them: the
    same results, less memory, about a third more time, which larger batches may make up for."""
    speedups: Speedups = Speedups()
    """Techniques that act on model, batch, loss or evaluation, one a slot."""
    loader: Annotated[LoaderConfig, Component(LOADERS)] = Resident()
    """How batches reach the device."""
    channels_last: bool | Auto = True
    """Memory layout of images and convolutions: NHWC rather than NCHW. `auto`, here and below: the
    quicker is found by a measurement of a fraction of a second before training, once a node for
    each kind of step."""
    compile: bool | Auto = False
    """Compile the model with `torch.compile`, before the clock starts."""
    compile_mode: CompileMode = "default"
    """Mode of `torch.compile`, where the model is compiled."""
    cuda_graph: bool | Auto = "auto"
    """On CUDA: record an optimizer step once, before the clock starts, and replay it, which spares
    the host hundreds of launches; the results are the same. The graph makes the images, computes
    all gradients and moves the weights; the last is left outside where a schedule changes the
    momentum, with `swats`, `yellowfin` and most of `timm`, with decoupled decay of `sgd`, with
    `optimizer_kernels: foreach` of `sgd` and `muon`, and in fp16 with `muon`. Not on a CPU."""
    optimizer_kernels: Literal["fused", "foreach", "auto"] = "fused"
    """How an optimizer's step is computed: one pass over all weights, or one operation after the
    other for all weights together; without effect for optimizers that have one way only."""
    deterministic: bool = False
    """On CUDA: deterministic cuDNN algorithms only, so that a seed gives the same run twice; else
    the fastest ones, which are tried out before the clock starts."""

    @model_validator(mode="after")
    def _batch_words_agree(self) -> Self:
        auto = self.accumulation_steps == "auto"
        if auto and (self.effective_batch_size is None or self.batch_size is not None):
            raise ValueError(
                "accumulation_steps: auto must come with effective_batch_size, without batch_size"
            )
        if not auto and (self.batch_size is None or self.effective_batch_size is not None):
            raise ValueError(
                "batch_size must be given, and effective_batch_size left out, unless"
                " accumulation_steps is auto"
            )
        if (self.effective_batch_size or 0) % self.devices:
            raise ValueError("effective_batch_size must be a multiple of devices")
        return self

    @model_validator(mode="after")
    def _techniques_go_together(self) -> Self:
        if reasons := list(self.conflicts()):
            raise ValueError(" ".join(reasons))
        return self

    def conflicts(self) -> Iterator[str]:
        """Yields which of its parts do not go together, and why; what is `auto` goes with all."""
        order = next(name for name, kind in ORDERS.items() if type(self.order) is kind)
        yield from (str(problem) for problem in self.speedups.refusals(self))
        yield from conflicts(self.speedups.named(), (order,))
        for name, speedup in self.speedups.named().items():
            has_loss = type(speedup).sum_of_losses is not SpeedupConfig.sum_of_losses
            if has_loss and self.class_weights != "none" and not speedup.takes_class_weights:
                yield f"class_weights must be none with {name}, whose loss has none"
        together = self.augmentation.mixed_images
        if isinstance(self.batch_size, int) and self.batch_size % together:
            yield f"batch_size must be even with mixup or cutmix, not {self.batch_size}"
        if (self.effective_batch_size or 0) % (self.devices * together):
            yield "effective_batch_size must be even on each device with mixup or cutmix"
        mode = self.compile_mode
        records = self.compile is True and mode in WITHOUT_GRAPHS
        if records and self._accumulates:
            # Torch's graphs overwrite gradients of the micro-batch before: an error in
            # pytorch 169545, and in 96693 wrong gradients.
            yield f"compile_mode must be {WITHOUT_GRAPHS[mode]} with accumulation, not {mode}"
        if self.drop_last and any(factor > 1 for _, factor in self.speedups.batch_growth.growth()):
            yield "drop_last must be false with speedups.batch_growth, whose steps grow"
        yield from self._conflicts_of_fine_tuning()
        if getattr(self.optimizer, "staleness", 0):
            yield "the optimizer's staleness must be 0: a recipe's training is synchronous"
        eps = getattr(self.optimizer, "eps", None)
        if self.precision in ("half", "half_fp32_norms") and eps is not None and eps < LEAST_EPS:
            # A square is first multiplied by 1 - beta2, and 2^-25 is the first that is not 0.
            largest = math.sqrt(2.0**-25 / (1 - getattr(self.optimizer, "beta2", 0.999)))
            yield (
                f"the optimizer's eps must be at least {LEAST_EPS:g} with precision"
                f" {self.precision}, in which squares of gradients of less are 0: steps would be"
                f" up to {largest / eps:.0f} times the rate with {eps:g}, and are no larger than"
                f" the rate from about {largest:.1e} on"
            )
        if self.cuda_graph is not True:
            return
        if records:
            yield f"cuda_graph must be false with compile_mode {mode}, which records"
        if self.devices > 1:
            yield "cuda_graph must be false with several devices, which wait for one another"
        for name, speedup in self.speedups.named().items():
            if not speedup.is_recordable:
                yield f"cuda_graph must be false with {name}, whose steps are not all alike"

    def _conflicts_of_fine_tuning(self) -> Iterator[str]:
        optimizer, named = self.optimizer, self.speedups.named()
        is_loaded = self.model.weights_file or getattr(self.model, "pretrained", False)
        if optimizer.finds_rate and (self.layer_decay is not None or self.head_lr_scale != 1.0):
            yield "layer_decay and head_lr_scale must be left out with an optimizer of one rate"
        if optimizer.averages_weights:
            yield from self._conflicts_of_schedule_free()
        if self.reinit_head and not is_loaded:
            yield "reinit_head must be false where the model loads no weights: all start fresh"
        is_trained_before = self.speedups.sets_weights or isinstance(self.order, Curriculum)
        if self.freeze and (is_trained_before or {"boosted", "batch_stages"} & named.keys()):
            yield "freeze must be left out with speedups.init, boosted, batch_stages, curriculum"
        if self.activation_checkpointing:
            others = [n for n in ("compile", "cuda_graph") if getattr(self, n) is True]
            others += {"boosted", "stochastic_depth"} & named.keys()
            if others:
                yield f"activation_checkpointing must be false with {others[0]}"

    def _conflicts_of_schedule_free(self) -> Iterator[str]:
        if any(each is not None for each in given_momenta(self.lr_schedule)):
            yield "lr_schedule must leave the momentum as it is with a schedule-free optimizer"
        # Weights that join later would take steps of many times the rate: the correction of the
        # second moment's bias counts all steps of the run.
        others = ["freeze"] * (self.freeze is not None)
        others += [f"speedups: {n}" for n in ("ema", "boosted") if n in self.speedups.named()]
        if others:
            yield f"{others[0]} must be left out with a schedule-free optimizer"

    @property
    def _accumulates(self) -> bool:
        is_split = isinstance(self.accumulation_steps, int) and self.accumulation_steps > 1
        return is_split or any(factor > 1 for _, factor in self.speedups.batch_growth.growth())

    @property
    def records_update(self) -> bool:
        """Whether a recorded step moves the weights too, as the host has no say in it."""
        fused, is_scaled = self.optimizer_kernels == "fused", self.precision == "fp16"
        is_recordable = self.optimizer.is_recordable(fused=fused, is_scaled=is_scaled)
        return is_recordable and all(each is None for each in given_momenta(self.lr_schedule))

    def with_allowed_mode(self) -> "Recipe":
        """Returns the recipe, whose mode of compiling records nothing where that goes wrong."""
        mode = WITHOUT_GRAPHS.get(self.compile_mode, self.compile_mode)
        is_alone = self.compile is False or not (self.cuda_graph is True or self._accumulates)
        return self if is_alone else self.model_copy(update={"compile_mode": mode})

    def train_shape(self, stored: tuple[int, ...]) -> tuple[int, int, int]:
        """Returns the shape (H, W, C) of what is trained on, of stored images of such a shape."""
        height, width, channels = stored
        side = self.image_size
        return (height, width, channels) if side is None else (side, side, channels)

    def eval_shape(self, stored: tuple[int, ...]) -> tuple[int, int, int]:
        """Returns the shape (H, W, C) of what is evaluated on, of stored images of such a shape."""
        side, channels = self.eval_size, stored[2]
        return self.train_shape(stored) if side is None else (side, side, channels)

    def steps(self, *, num_train: int) -> int:
        return sum(num_steps for _, num_steps in self.growth_steps(num_train=num_train))

    def growth_steps(self, *, num_train: int) -> tuple[tuple[int, int], ...]:
        """Returns the stages of the batch size: factor f and number of optimizer steps.

        A stage with the share s of the run's samples has
        round(s · epochs · ⌈num_train / (f · effective_batch_size)⌉) steps, at least 1; ⌊…⌋ with
        `drop_last`.
        """
        return tuple(
            (factor, max(1, round(share * self.epochs * steps)))
            for share, factor in self.speedups.batch_growth.growth()
            for samples in [factor * self.samples_per_step]
            for steps in [steps_of_pass(num_train, samples, drop_last=self.drop_last)]
        )

    def step_schedule(
        self, *, num_train: int, height: int, width: int
    ) -> tuple[tuple[Shape, int], ...]:
        stages = self.growth_steps(num_train=num_train)
        bases = [Shape(height, width, factor) for factor, count in stages for _ in range(count)]
        if (freeze := self.freeze) is not None:
            steps = steps_of_pass(num_train, self.samples_per_step, drop_last=self.drop_last)
            num_frozen = freeze.steps or max(1, round((freeze.epochs or 0) * steps))
            bases[:num_frozen] = [base._replace(is_frozen=True) for base in bases[:num_frozen]]
        shapes = (
            self.speedups.shape(shape, frac=step / len(bases)) for step, shape in enumerate(bases)
        )
        return tuple((shape, sum(1 for _ in steps)) for shape, steps in groupby(shapes))

    def averager(self, model: "nn.Module", optimizer: "Optimizer") -> Averager | None:
        """Returns what has the weights to be evaluated; None: the model itself."""
        own = self.optimizer.averager(model, optimizer)
        return own or self.speedups.averaging.averager(model)

    def begin_step(self, model: "nn.Module", shape: Shape) -> None:
        """Readies the model for an optimizer step of that shape: what is frozen, and speed-ups."""
        if self.freeze is not None:
            from tune_speed.components.models.networks.layers import set_frozen

            set_frozen(model, is_frozen=shape.is_frozen)
        self.speedups.begin_step(model, shape)

    @property
    def is_channels_last(self) -> bool:
        """`channels_last`, which is settled before training."""
        assert self.channels_last != "auto", "it is settled before training"
        return self.channels_last

    @property
    def samples_per_step(self) -> int:
        """The effective batch size over all devices, however it was given."""
        if self.effective_batch_size is not None:
            return self.effective_batch_size
        assert isinstance(self.batch_size, int), "batch_size: auto is resolved before training"
        assert isinstance(self.accumulation_steps, int)
        return self.batch_size * self.accumulation_steps * self.devices

    def check_labels(self, *, num_classes: int, are_several: bool) -> None:
        """Raises: ConfigError if it cannot learn such labels, of which an image has one or more."""
        if are_several and not self.speedups.takes_several_labels:
            must = "must be one for several labels an image, bce or focal"
            raise ConfigError.of("speedups.loss", must, given="cross-entropy")
        weights = self.class_weights
        if isinstance(weights, tuple) and len(weights) != num_classes:
            must = f"must be a weight for each of the {num_classes} classes"
            raise ConfigError.of("class_weights", must, given=f"{len(weights)} weights")

    def with_class_weights(self, counts: "NDArray[np.int64]") -> "Recipe":
        """Returns the recipe, whose weights are numbers where they balance `counts` (K,)."""
        if self.class_weights != "balanced":
            return self
        weights = counts.sum() / (len(counts) * counts)
        return self.model_copy(update={"class_weights": tuple(weights.tolist())})

    def with_micro_batch(self, batch_size: int) -> "Recipe":
        """Returns the recipe with another micro-batch and the same effective batch size.

        The mode of compiling changes with it where torch's own graphs take no accumulation.
        Where `batch_size` does not divide a device's share of it, it is an error of ours.
        """
        share = self.samples_per_step // self.devices
        assert share % batch_size == 0, (share, batch_size)
        return self.model_copy(
            update={
                "batch_size": batch_size,
                "accumulation_steps": share // batch_size,
                "effective_batch_size": None,
            }
        ).with_allowed_mode()

    def identity_fields(self) -> dict[str, Any]:
        """Returns what must stay the same in a run that is resumed, as JSON has it."""

        def kept(tree: Any) -> Any:
            if not isinstance(tree, dict):
                return tree
            tree = tree | {k: was for k, now, was in FORMERLY if k in tree and tree[k] == now}
            items = tree.items()
            return {key: kept(value) for key, value in items if (key, value) not in SINCE}

        fields: dict[str, Any] = kept(self.model_dump(mode="json"))
        return fields

    def speed_fields(self) -> dict[str, Any]:
        """Returns what a step's speed depends on beyond its shape, as JSON has it."""
        kind = type(self.optimizer)
        # A plugin's class may share its name with one of ours.
        is_ours = kind.__module__.startswith("tune_speed.")
        name = kind.__name__ if is_ours else f"{kind.__module__}.{kind.__qualname__}"
        # A schedule may give a momentum to an optimizer that has none by itself.
        update = self.optimizer.speed_fields() | momenta(self.optimizer, self.lr_schedule)
        parts = {
            "optimizer": {name: update},
            "augmentation": self.augmentation.speed_fields(),
            "speedups": self.speedups.speed_fields(),
        }
        if self.freeze is not None:
            parts["freeze"] = {"until": self.freeze.until}
        return {**super().speed_fields(), **parts}

    def located(self) -> Self:
        parts = {"model": self.model.located(), "speedups": self.speedups.located()}
        return self.model_copy(update=parts)

    def needs_cuda(self) -> str | None:
        """Returns why this recipe cannot run on a CPU, or None."""
        if self.precision == "fp16":
            return "precision fp16 is about 20 times slower than fp32 on a CPU: use bf16 or a GPU"
        return None


def not_applicable(
    recipe: Recipe, base: Recipe, *, device: "torch.device", num_devices: int
) -> str | None:
    """Returns why what `recipe` changes about `base` has no effect here, or cannot run; or None.

    On a CPU, where devices are processes, `num_devices`, GPUs of this machine, is not looked at.
    """
    if device.type == "cuda":
        if recipe.devices <= num_devices:
            return None
        are = "is" if num_devices == 1 else "are"
        return f"it takes {recipe.devices} GPUs, and there {are} {num_devices} here"
    if recipe.needs_cuda() and not base.needs_cuda():
        return recipe.needs_cuda()
    ours, theirs = recipe.loader, base.loader
    # Another kind of loader is a change of its own, even if it pins by default.
    if (
        isinstance(ours, Streaming)
        and isinstance(theirs, Streaming)
        and (ours.pin_memory != theirs.pin_memory)
    ):
        return "pinned memory speeds up copies to a GPU, and there is none here"
    if recipe.cuda_graph != base.cuda_graph:
        return "a CUDA graph spares launches on a GPU, and there is none here"
    return None
