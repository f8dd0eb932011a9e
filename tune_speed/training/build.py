"""What is trained: a job, its model and forward, and loaders of real and of black images."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import nn

from tune_speed.components.models.networks.half import Half
from tune_speed.components.speedups.base import Shape
from tune_speed.data.base import Images
from tune_speed.data.loaders.base import Loader
from tune_speed.data.loaders.configs import LoaderConfig, Resident
from tune_speed.data.orders import WHOLE, Order, Share, WholeSteps
from tune_speed.data.split import Splits
from tune_speed.training.ranks import Ranks
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.compilation import compiled
from tune_speed.training.step.gradient import Forward
from tune_speed.training.step.step import micro_batch_of
from tune_speed.training.workload import Workload

StepSchedule = tuple[tuple[Shape, int], ...]
"""A run as shapes of steps, each with its number of steps in a row."""


def step_schedule_of(recipe: Recipe, splits: Splits) -> StepSchedule:
    """Returns the run as shapes of steps, each with its number of steps in a row."""
    num_train, height, width, _ = splits.train.pixels.shape
    return recipe.step_schedule(num_train=num_train, height=height, width=width)


Part = Literal["validation", "test"]
"""Of the data: that a search is judged on, or that certified results are."""


@dataclass(frozen=True)
class Job:
    """What stays the same from a run's start to its end."""

    workload: Workload
    recipe: Recipe
    """As it runs: of its fields none is `auto`."""
    splits: Splits
    seed: int
    device: torch.device
    evaluated_on: Part
    ranks: Ranks
    """Those that train together."""

    @cached_property
    def step_schedule(self) -> StepSchedule:
        """The run as shapes of steps, each with its number of steps in a row."""
        return step_schedule_of(self.recipe, self.splits)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Each shape of step once, in the order of the run."""
        return tuple(dict(self.step_schedule))


def set_seed(recipe: Recipe, seed: int) -> None:
    """Seeds torch, once speed-ups have read their data."""
    torch.manual_seed(seed)
    recipe.speedups.read_data()


def set_kernels(recipe: Recipe) -> dict[str, bool]:
    """Has this process choose kernels as the recipe says; returns the flags of cuDNN."""
    torch.set_float32_matmul_precision(recipe.matmul_precision)
    flags = {"deterministic": recipe.deterministic, "benchmark": not recipe.deterministic}
    for name, value in flags.items():
        setattr(torch.backends.cudnn, name, value)
    return flags


def build_model(recipe: Recipe, splits: Splits, *, seed: int, device: torch.device) -> nn.Module:
    """Returns the recipe's model for the data, on the device, in the recipe's memory format.

    From now on this process computes with the recipe's kernels, whoever it is that measures, warms
    up or trains.
    """
    set_kernels(recipe)
    _, height, width, channels = splits.train.pixels.shape
    model = recipe.model.build(
        in_channels=channels, num_classes=splits.num_classes, image_size=max(height, width)
    )
    model = recipe.speedups.change_model(model, num_classes=splits.num_classes, seed=seed)
    memory_format = torch.channels_last if recipe.is_channels_last else torch.contiguous_format
    # The host is done with a tensor once it is staged; else it would wait for the GPU at each.
    model = model.to(device, non_blocking=True).to(memory_format=memory_format)
    if recipe.precision not in ("half", "half_fp32_norms"):
        return model
    return Half(model, has_fp32_norms=recipe.precision == "half_fp32_norms")


def build_forward(model: nn.Module, recipe: Recipe) -> Forward:
    """Returns what computes the model's logits: compiled where the recipe says so."""
    assert recipe.compile != "auto", "it is settled before training"
    return compiled(model, mode=recipe.compile_mode) if recipe.compile else model


def open_dummy(recipe: Recipe, splits: Splits, *, num_samples: int, device: torch.device) -> Loader:
    """Returns a loader of black images of the data's shape, which go the way of real ones."""
    _, *shape = splits.train.pixels.shape
    images = Images(np.zeros((num_samples, *shape), np.uint8), np.zeros(num_samples, np.int64))
    return open_loader(Resident(), images, recipe, splits, seed=0, device=device)


def open_order(recipe: Recipe, images: Images, *, seed: int) -> Order:
    """Returns the order in which the recipe goes through the images."""
    size, step = micro_batch_of(recipe), recipe.samples_per_step
    order = recipe.order.open(images.labels, batch_size=size, samples_per_step=step, seed=seed)
    return WholeSteps(order, step, size, seed) if recipe.drop_last else order


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
