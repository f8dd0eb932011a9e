"""Small workloads, recipes, models and images for tests that train."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.optim.optimizers import Sgd
from tune_speed.core.records import RunResult
from tune_speed.data.base import Images
from tune_speed.data.datasets.builtin import Digits
from tune_speed.data.split import SplitConfig, Splits, channel_statistics
from tune_speed.study.settings import ResourceConfig
from tune_speed.training.build import Job
from tune_speed.training.loop import Run, train
from tune_speed.training.recipe import Recipe
from tune_speed.training.trial import Allotment, TrialSpec
from tune_speed.training.workload import Target, Workload

CPU = torch.device("cpu")
NUM_CLASSES = 3


NUM_TRAIN = 60
"""Images of the training part of `make_spec`."""


class Tiny(ModelConfig):
    """One convolution, a norm, and a linear layer."""

    norm: Literal["group", "batch", "none"] = "group"
    dropout: float = 0.0
    most_images: int | None = None
    """A larger micro-batch runs out of memory."""
    crash_after: int | None = None
    """So many forward passes work."""

    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
        return TinyNetwork(self, in_channels, num_classes)


class TinyNetwork(nn.Module):
    def __init__(self, config: Tiny, in_channels: int, num_classes: int) -> None:
        super().__init__()
        norms = {"group": nn.GroupNorm(2, 4), "batch": nn.BatchNorm2d(4), "none": nn.Identity()}
        self.config, self.num_passes = config, 0
        self.conv = nn.Conv2d(in_channels, 4, 3, padding=1)
        self.norm = norms[config.norm]
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(4, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        if self.config.most_images is not None and len(images) > self.config.most_images:
            raise torch.OutOfMemoryError(f"{len(images)} images are too many")
        if self.config.crash_after is not None:
            if self.num_passes == self.config.crash_after:
                raise ZeroDivisionError("boom")
            self.num_passes += 1
        features = self.norm(self.conv(images)).relu().amax(dim=(2, 3))
        logits: Tensor = self.classifier(self.dropout(features))
        return logits


def make_images(count: int, *, size: int = 6, channels: int = 1, seed: int = 0) -> Images:
    """Returns noise with bright rows (class 0), bright columns (class 1) or neither (class 2)."""
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 120, (count, size, size, channels), np.uint8)
    labels = np.arange(count) % NUM_CLASSES
    pixels[labels == 0, ::2] += 120
    pixels[labels == 1, :, ::2] += 120
    return Images(pixels, labels)


def make_splits(num_train: int = 20, num_validation: int = 9, *, channels: int = 1) -> Splits:
    train = make_images(num_train, channels=channels)
    validation = make_images(num_validation, channels=channels, seed=1)
    mean, std = channel_statistics(train.pixels)
    return Splits(train, validation, validation, mean, std, NUM_CLASSES, split_hash="s" * 16)


def make_recipe(**changes: Any) -> Recipe:
    """Returns a recipe; `model`, an object, need not be in the table of models."""
    model = changes.pop("model", Tiny())
    fields = {"optimizer": Sgd(lr=0.1), "epochs": 2.0, "batch_size": 8, **changes}
    return Recipe(model=ResNet20(), **fields).model_copy(update={"model": model})


def make_workload(*, target: float = 1.0, **changes: Any) -> Workload:
    """Returns a workload whose target is hard to meet; its data set is not asked for anything."""
    return Workload(dataset=Digits(), target=Target(value=target), **changes)


def to_end(run: Run, *, between: Callable[[RunResult], str | None] = lambda _: None) -> RunResult:
    """Runs to the end; `between` sees the result so far and may give a reason to stop."""
    try:
        so_far = next(run)
        while True:
            so_far = run.send(between(so_far))
    except StopIteration as end:
        result: RunResult = end.value
        return result


def run(
    recipe: Recipe | None = None, splits: Splits | None = None, *, seed: int = 0, **workload: Any
) -> RunResult:
    recipe, splits = recipe or make_recipe(), splits or make_splits()
    return to_end(train(Job(make_workload(**workload), recipe, splits, seed=seed, device=CPU)))


def make_spec(
    *, model: dict[str, Any] | None = None, workload: Workload | None = None, **recipe: Any
) -> TrialSpec:
    fields = {"optimizer": {"sgd": {"lr": 0.1}}, "epochs": 2.0, "batch_size": 16, **recipe}
    split = SplitConfig(train_samples=NUM_TRAIN, validation_samples=30)
    return TrialSpec(
        study="study",
        trial_id="t0000",
        params={},
        recipe=Recipe.model_validate({"model": {"tiny": model or {}}, **fields}),
        workload=workload or make_workload(split=split),
        workload_hash="w" * 16,
        space_hash="s" * 16,
        seed=0,
        allotment=Allotment(device="cpu", cpu_fraction=0.5),
    )


# --- What Ray gives a process of trials


def config_of(spec: TrialSpec, folder: Path, **changes: Any) -> dict[str, Any]:
    """Returns the configuration of a trial that is on one device of this machine."""
    return {
        "spec": spec.model_dump_json(),
        "devices": 1,
        "resources": ResourceConfig().model_dump_json(),
        "folder": str(folder),
        "stop_after_s": None,
        "hang_after_s": 600.0,
        "heartbeat_s": 0.2,
        "report_every_s": 0.05,
        **changes,
    }
