"""What is trained: a job, its model and forward, and loaders of real and of black images.

What `torch.compile` made is found again by the next trial with the same network: in a process by
torch's own cache of code, across processes by inductor's cache on disk, which lies next to the
decoded data (`TUNE_SPEED_CACHE`), in a folder of this node's and this user's own.
"""

import os
import platform
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from tune_speed.components.models.networks import layers
from tune_speed.components.speedups.base import Shape
from tune_speed.core.folders import default_cache_dir
from tune_speed.core.records import Normalisation
from tune_speed.data.base import Images
from tune_speed.data.loaders.base import Batching, Loader
from tune_speed.data.loaders.configs import Dummy
from tune_speed.data.loaders.resident import View
from tune_speed.data.orders import WHOLE, Order, Share, WholeSteps
from tune_speed.data.split import Splits
from tune_speed.training.ranks import ALONE, Ranks
from tune_speed.training.recipe import WITHOUT_GRAPHS, Recipe
from tune_speed.training.step.step import Forward, micro_batch_of
from tune_speed.training.workload import Workload

StepSchedule = tuple[tuple[Shape, int], ...]


def step_schedule_of(recipe: Recipe, splits: Splits) -> StepSchedule:
    num_train, *stored = splits.train.pixels.shape
    height, width, _ = recipe.train_shape(tuple(stored))
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
    evaluated_on: Part = "validation"
    """The part on which the target must hold. A schedule that follows the loss follows that of the
    validation part all the same."""
    ranks: Ranks = field(default_factory=lambda: ALONE)
    """Those that train together: rank 0 alone evaluates, yields and gets the reason to stop."""

    @cached_property
    def step_schedule(self) -> StepSchedule:
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
    """Returns the recipe's model on the device; the process has its kernels from now on.

    Raises: ConfigError if the recipe cannot learn such labels.
    """
    are_several = splits.train.labels.ndim == 2
    recipe.check_labels(num_classes=splits.num_classes, are_several=are_several)
    set_kernels(recipe)
    height, width, channels = recipe.train_shape(splits.train.pixels.shape[1:])
    sizes = {"in_channels": channels, "num_classes": splits.num_classes}
    model = recipe.model.build(**sizes, image_size=max(height, width))
    if recipe.reinit_head:
        layers.take_heads(model, recipe.model.network(**sizes, image_size=max(height, width)))
    model = recipe.speedups.change_model(model, num_classes=splits.num_classes, seed=seed)
    make_ready_for_fine_tuning(model, recipe)
    memory_format = torch.channels_last if recipe.is_channels_last else torch.contiguous_format
    # The host is done with a tensor once it is staged; else it would wait for the GPU at each.
    model = model.to(device, non_blocking=True).to(memory_format=memory_format)
    if recipe.precision not in ("half", "half_fp32_norms"):
        return model
    return Half(model, has_fp32_norms=recipe.precision == "half_fp32_norms")


def make_ready_for_fine_tuning(model: nn.Module, recipe: Recipe) -> None:
    """Finds the layers that the recipe names. Raises: ConfigError if the network has none such."""
    layers.rate_factors(model, recipe.layer_decay, recipe.head_lr_scale)
    if recipe.freeze is not None:
        layers.mark_frozen(model, recipe.freeze.until)
    if recipe.activation_checkpointing:
        layers.checkpoint_layers(model)


def build_forward(model: nn.Module, recipe: Recipe) -> Forward:
    assert recipe.compile != "auto", "it is settled before training"
    return compiled(model, mode=recipe.compile_mode) if recipe.compile else model


def open_dummy(recipe: Recipe, splits: Splits, *, num_samples: int, device: torch.device) -> Loader:
    """Returns a loader of black images of the data's shape, which go the way of real ones."""
    _, *shape = splits.train.pixels.shape
    labels = np.zeros_like(splits.train.labels, shape=(num_samples, *splits.train.labels.shape[1:]))
    images = Images(np.zeros((num_samples, *shape), np.uint8), labels)
    recipe = recipe.model_copy(update={"loader": Dummy()})
    return open_loader(recipe, images, splits, seed=0, device=device)


def normalisation_of(recipe: Recipe, splits: Splits) -> Normalisation:
    """Returns what normalises pixels: the weights' own statistics, or the training part's."""
    known = recipe.model.normalisation(in_channels=splits.train.pixels.shape[-1])
    return known or Normalisation(mean=splits.mean, std=splits.std)


def view_of(recipe: Recipe, splits: Splits) -> View:
    """Returns how evaluation shows the images of any part."""
    normalisation = normalisation_of(recipe, splits)
    return View(
        normalisation.mean,
        normalisation.std,
        channels_last=recipe.is_channels_last,
        image_size=recipe.eval_size or recipe.image_size,
        crop_pct=recipe.crop_pct,
    )


def open_order(recipe: Recipe, images: Images, *, seed: int) -> Order:
    size, step = micro_batch_of(recipe), recipe.samples_per_step
    order = recipe.order.open(images.labels, batch_size=size, samples_per_step=step, seed=seed)
    return WholeSteps(order, step, size, seed) if recipe.drop_last else order


def open_loader(
    recipe: Recipe,
    images: Images,
    splits: Splits,
    *,
    seed: int,
    device: torch.device,
    share: Share = WHOLE,
) -> Loader:
    normalisation = normalisation_of(recipe, splits)
    batching = Batching(
        open_order(recipe, images, seed=seed),
        normalisation.mean,
        normalisation.std,
        device,
        recipe.augmentation,
        channels_last=recipe.is_channels_last,
        share=share,
        image_size=recipe.image_size,
        num_classes=splits.num_classes,
    )
    return recipe.loader.open(images, batching)


FOLDER = "TORCHINDUCTOR_CACHE_DIR"
"""Torch's variable for the folder of what it compiles. What the user sets holds."""
MOST_GRAPHS = 8
"""So many graphs may be there when the next model comes; with more, all are forgotten."""
# Shapes of one function that are compiled; any further one would run uncompiled.
RECOMPILE_LIMIT = 64


class _Compiled:
    """What this process has compiled since it last forgot all."""

    key: str | None = None
    num_graphs_before = 0


def compiled(model: nn.Module, *, mode: str = "default") -> Forward:
    """Returns the forward of a model on its device, compiled at its first call with a shape."""
    keep_on_disk(default_cache_dir())
    key = _key(model, mode)
    # Weights and statistics are inputs of what torch compiles, and whatever else it took for
    # constant is a guard that each call checks: so a model of the same make may run what was
    # compiled for the one before. Recorded CUDA graphs hold addresses of one model's weights.
    num_new = _num_graphs() - _Compiled.num_graphs_before
    may_reuse = key == _Compiled.key and mode not in WITHOUT_GRAPHS
    if not may_reuse or not 0 <= num_new <= MOST_GRAPHS:
        torch.compiler.reset()
        _Compiled.key, _Compiled.num_graphs_before = key, _num_graphs()
    forward: Forward = torch.compile(model, dynamic=False, mode=mode)
    # Torch's own limit is 8, of which earlier trials would have used some.
    torch._dynamo.config.recompile_limit = RECOMPILE_LIMIT
    return forward


def keep_on_disk(cache_dir: Path) -> None:
    """Has torch store what it compiles in a folder of `cache_dir`, if that can be made."""
    # By default it is /tmp/torchinductor_USER, where whoever comes first on a shared machine could
    # leave code for others to run, and where files may vanish.
    #
    # Processes may share it: entries are named by the hash of what they hold and renamed into
    # place, and readers pass over half-written ones (since torch's pull request 172144). Triton's
    # kernels lie in a folder for each device beneath as long as TRITON_CACHE_DIR is not set, so it
    # is left alone: with all in one place, several processes met in one file (torch's issue
    # 153791).
    if os.environ.get(FOLDER):
        return
    folder = cache_dir / "compiled" / platform.node() / f"torch-{torch.__version__}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return
    os.environ[FOLDER] = str(folder)


def _key(model: nn.Module, mode: str) -> str:
    kinds = [f"{type(module).__module__}.{type(module).__qualname__}" for module in model.modules()]
    tensors = [
        (name, tuple(tensor.shape), str(tensor.dtype), tensor.stride(), str(tensor.device))
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    ]
    # Code for a CPU is made for a number of threads.
    return repr((mode, torch.get_num_threads(), str(model), kinds, tensors))


def _num_graphs() -> int:
    # Late: it takes 1.6 s to import.
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


NORMS = (_BatchNorm, _InstanceNorm, nn.GroupNorm, nn.LayerNorm)


class Half(nn.Module):
    """Images of any type in, fp16 logits (N, K) out; without a master copy of the weights.

    A negative control for autocast, which keeps weights and their updates in fp32. With
    `has_fp32_norms` normalisation layers have weights, statistics and sums in fp32; their outputs
    are fp16 again.

    Source: Micikevicius et al., "Mixed Precision Training", arXiv 1710.03740, on what is lost;
    K. Jordan 2024 (arXiv:2404.00498) trains with batch norm in fp32 and all else in fp16.
    """

    def __init__(self, network: nn.Module, *, has_fp32_norms: bool = False) -> None:
        super().__init__()
        # A step smaller than 2^-11 of a weight is lost, and gradients below 2^-24 are zero.
        self.network = network.half()
        # Squares of activations overflow fp16 beyond 255.
        if has_fp32_norms:
            for module in self.network.modules():
                if isinstance(module, NORMS):
                    module.float()
                # Batch norms in fp32 take fp16 as it is, without a copy on either side.
                if isinstance(module, NORMS) and not isinstance(module, _BatchNorm):
                    module.register_forward_pre_hook(_to_float)
                    module.register_forward_hook(_to_half)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images.half())
        return logits


def _to_float(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.float() if torch.is_tensor(value) else value for value in inputs)


def _to_half(_module: nn.Module, _inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    return output.half()
