"""Everything that a search may change about a training."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tune_speed.config import Component, Config
from tune_speed.data import LOADERS
from tune_speed.data.augment import Augmentation
from tune_speed.data.loaders import LoaderConfig, Resident
from tune_speed.models import MODELS
from tune_speed.models.base import ModelConfig
from tune_speed.optim import OPTIMIZERS, OptimizerConfig
from tune_speed.schedules import SCHEDULES, Constant, ScheduleConfig

Positive = Annotated[int, Field(gt=0)]


class Recipe(Config):
    """One way to train.

    Batch words: `batch_size` is one micro-batch on one device, `accumulation_steps` the
    micro-batches of one optimizer step, and
    `effective_batch_size = batch_size · accumulation_steps` the samples of one optimizer step.
    Give either the first two, or `effective_batch_size` with `accumulation_steps: auto`: then the
    fastest micro-batch that fits is measured before training.
    """

    model: Annotated[ModelConfig, Component(MODELS)]
    """The network."""
    optimizer: Annotated[OptimizerConfig, Component(OPTIMIZERS)]
    """The optimizer and its rates."""
    lr_schedule: Annotated[ScheduleConfig, Component(SCHEDULES)] = Constant()
    """How rates change over the run."""
    epochs: Annotated[float, Field(gt=0, le=100_000)]
    """Passes over the training part; need not be whole."""
    batch_size: Positive | None = None
    """Samples of one micro-batch on one device."""
    accumulation_steps: Positive | Literal["auto"] = 1
    """Micro-batches of one optimizer step; `auto` needs `effective_batch_size`."""
    effective_batch_size: Positive | None = None
    """Samples of one optimizer step; only with `accumulation_steps: auto`."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of forward and backward: autocast for `bf16` and `fp16`; `fp16` needs CUDA."""
    augmentation: Augmentation = Augmentation()
    """Changes to training images."""
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the target distribution that is spread evenly over the classes."""
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    """Largest norm of the whole gradient; null: not clipped."""
    loader: Annotated[LoaderConfig, Component(LOADERS)] = Resident()
    """How batches reach the device."""
    channels_last: bool = True
    """Memory layout of images and convolutions: NHWC rather than NCHW."""
    compile: bool = False
    """Compile the model with `torch.compile`, before the clock starts."""
    deterministic: bool = True
    """On CUDA: deterministic cuDNN algorithms only, so that a seed gives the same run twice."""

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
        return self

    def steps(self, *, num_train: int) -> int:
        """Returns the optimizer steps of the run: `round(epochs · steps per epoch)`, at least 1."""
        return max(1, round(self.epochs * self.steps_per_epoch(num_train=num_train)))

    def steps_per_epoch(self, *, num_train: int) -> int:
        """Returns `⌈num_train / effective_batch_size⌉`: a ragged last group is a step too."""
        return math.ceil(num_train / self.samples_per_step)

    @property
    def samples_per_step(self) -> int:
        """The effective batch size on one device, however it was given."""
        if self.effective_batch_size is not None:
            return self.effective_batch_size
        assert self.batch_size is not None and isinstance(self.accumulation_steps, int)
        return self.batch_size * self.accumulation_steps

    def with_micro_batch(self, batch_size: int) -> "Recipe":
        """Returns the recipe with another micro-batch and the same effective batch size.

        Where `batch_size` does not divide the effective batch size, it is an error of ours.
        """
        assert self.samples_per_step % batch_size == 0, (self.samples_per_step, batch_size)
        return self.model_copy(
            update={
                "batch_size": batch_size,
                "accumulation_steps": self.samples_per_step // batch_size,
                "effective_batch_size": None,
            }
        )

    def needs_cuda(self) -> str | None:
        """Returns why this recipe cannot run on a CPU, or None."""
        if self.precision == "fp16":
            return "precision fp16 is about 20 times slower than fp32 on a CPU: use bf16 or a GPU"
        return None
