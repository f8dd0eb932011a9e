"""A tiny network on which every technique can act, recipes that name them, and their start."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.networks.cifar import BasicBlock
from tune_speed.components.speedups import SPEEDUPS
from tune_speed.components.speedups.base import Start
from tune_speed.data import ORDERS

FIELDS: dict[str, dict[str, Any]] = {
    "easiest_first": {"groups": (0, 0, 1)},
    "meprop": {"k": 2},
    "boosted": {"stages": 2},
    "pretrain_other": {"dataset": {"name": "digits"}, "train_samples": 50},
    "curriculum": {"step_length": 1, "scoring_epochs": 0.5},
    "repeat_factor": {"threshold": 0.9},
}
"""What a technique needs on three classes of tiny images, where its defaults do not do."""
TECHNIQUES = [*SPEEDUPS, *(name for name in ORDERS if name != "shuffle")]
SETTINGS: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "half": {"precision": "half"},
    "half_fp32_norms": {"precision": "half_fp32_norms"},
    "accumulation": {"batch_size": 4, "accumulation_steps": 2},
    "clip_norm": {"clip_norm": 0.5},
    "clip_value": {"clip_value": 0.1},
    "label_smoothing": {"label_smoothing": 0.1},
}
"""Techniques that are settings of the recipe."""


class Everything(ModelConfig):
    def network(self, *, in_channels: int, num_classes: int, image_size: int) -> nn.Module:
        return EverythingNetwork(in_channels, num_classes)


class EverythingNetwork(nn.Module):
    """Residual blocks, dropout and a hidden linear layer."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, 4, 3, padding=1)
        self.blocks = nn.Sequential(*(BasicBlock(4, 4, stride=1) for _ in range(3)))
        self.dropout = nn.Dropout(0.2)
        self.hidden = nn.Linear(4, 6)
        self.classifier = nn.Linear(6, num_classes)

    def stem(self, images: Tensor) -> Tensor:
        return self.conv(images)

    def head(self, features: Tensor) -> Tensor:
        hidden = self.hidden(features.mean(dim=(2, 3))).relu()
        return self.classifier(self.dropout(hidden))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)))


def changes(name: str) -> dict[str, Any]:
    if name in SETTINGS:
        return SETTINGS[name]
    if name in ORDERS:
        return {"order": {name: FIELDS.get(name, {})}}
    return {"speedups": {SPEEDUPS[name].slot: {name: FIELDS.get(name, {})}}}


# --- The start of a run, from which techniques derive weights

CPU = torch.device("cpu")
Batch = tuple[Tensor, Tensor]


def make_start(
    images: Tensor,
    labels: Tensor | None = None,
    *,
    batch_size: int = 16,
    num_classes: int = 10,
    fit: Callable[[nn.Module, Iterator[Batch], int], None] | None = None,
) -> Start:
    """Returns the start of a run on `images` (N, C, H, W), in another order each epoch."""
    if labels is None:
        labels = torch.arange(len(images)) % num_classes

    def batches(epoch: int) -> Iterator[Batch]:
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for chosen in order.split(batch_size):
            yield images[chosen], labels[chosen]

    def refuse(model: nn.Module, batches: Iterator[Batch], num_steps: int) -> None:
        raise AssertionError("nothing is to be trained")

    return Start(
        batches,
        lambda share, passes: batches(0),
        len(images),
        num_classes,
        batch_size,
        CPU,
        0,
        fit or refuse,
    )


# --- Recipes whose steps are recorded, for tests on a GPU and for those with a stand-in on a CPU

RECORDED: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "accumulation, ragged": {"batch_size": 3, "accumulation_steps": 3},
    "smaller last batch": {"batch_size": 7},
    "batch larger than the set": {"batch_size": 64},
    "clipping": {"clip_norm": 0.5, "clip_value": 0.1},
    "adamw, one-cycle": {"optimizer": {"adamw": {"lr": 1e-3}}, "lr_schedule": "one_cycle"},
    "streamed": {"loader": {"dataloader": {"workers": 1}}},
    "contiguous": {"channels_last": False},
    "whitening": {"speedups": {"init": {"whitening": {}}}, "model": {"plain_cnn": {"width": 8}}},
    "whitening, bias for half of the run": {
        "speedups": {"init": {"whitening": {"frozen": True, "bias_frac": 0.5}}},
        "model": {"speednet": {"width1": 4, "width2": 8, "width3": 8}},
    },
    "growing images": {"speedups": {"resolution": {"progressive_resizing": {}}}},
    "growing batches": {"speedups": {"batch_growth": {"batch_stages": {}}}},
    "ema": {"speedups": {"averaging": {"ema": {}}}},
    "focal loss": {"speedups": {"loss": {"focal": {}}}},
    "scored order": {"order": {"curriculum": {"step_length": 1, "scoring_epochs": 0.5}}},
    "epochs of different lengths": {"order": {"repeat_factor": {"threshold": 0.9}}},
    "label smoothing": {"label_smoothing": 0.1},
}
"""What each changes about a small recipe."""
