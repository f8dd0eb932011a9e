"""A tiny network on which every technique can act, and the recipe's fields for each of them."""

from typing import Any

from torch import Tensor, nn

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.networks.cifar import BasicBlock
from tune_speed.components.speedups import SPEEDUPS
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
    """A tiny network that has what any technique acts on."""

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
    """Returns the recipe's fields that switch a technique on."""
    if name in SETTINGS:
        return SETTINGS[name]
    if name in ORDERS:
        return {"order": {name: FIELDS.get(name, {})}}
    return {"speedups": {SPEEDUPS[name].slot: {name: FIELDS.get(name, {})}}}
