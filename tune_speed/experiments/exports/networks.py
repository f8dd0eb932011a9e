"""Networks as scripts build them."""

from typing import Any

import torch
from torch import nn

from tune_speed.components.models import MODELS
from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.networks.stem import STEMS, first_conv
from tune_speed.components.models.published import Published
from tune_speed.components.models.resnet import ResNet, ResNet20
from tune_speed.components.models.timm_model import Timm
from tune_speed.components.models.torchvision_model import TorchVision
from tune_speed.experiments.exports.filling import literal

NETWORKS = tuple(
    name for name, kind in MODELS.items()
    if kind in (ResNet, ResNet20, Timm, TorchVision) or issubclass(kind, Published)
)  # fmt: skip


class _Variable:
    """Stands for a variable of the script in a call that is written out."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


SIZES = {name: _Variable(name) for name in ("in_channels", "num_classes", "image_size")}


def network_facts(config: ModelConfig) -> dict[str, Any]:
    if isinstance(config, ResNet | ResNet20):
        blocks = (config.depth - 2) // 6 if isinstance(config, ResNet) else 3
        own = {
            "blocks": blocks,
            "dropout": config.dropout,
            "library": "",
            "takes": "channels, num_classes",
        }
        return {"kind": "resnet", **own, "weights_file": config.weights_file}
    model = config.published() if isinstance(config, Published) else config
    assert isinstance(model, Timm | TorchVision)
    library = "timm" if isinstance(model, Timm) else "torchvision"
    return {
        "kind": "library",
        "library": library,
        "needs": [library],
        "takes": "channels, num_classes, max(height, width)",
        "name": model.name,
        "pretrained": model.pretrained,
        "weights_file": model.weights_file,
        "resize_to": model.resize_to,
        "call": _call(model),
        "stem": _stem(model) if model.stem == "cifar" else None,
    }


def _call(model: Timm | TorchVision) -> str:
    if isinstance(model, Timm):
        create, given = "timm.create_model", model.arguments(**SIZES, pretrained=model.pretrained)
    else:
        sizes = {name: SIZES[name] for name in ("num_classes", "image_size")}
        create, given = "torchvision.models.get_model", model.arguments(**sizes)
    arguments = "".join(f"\n        {name}={literal(value)}," for name, value in given.items())
    return f"{create}(\n        {literal(model.name)},{arguments}\n    )"


def _stem(model: Timm | TorchVision) -> dict[str, Any]:
    network = without_weights(model)
    stem = STEMS[f"{type(network).__module__}.{type(network).__qualname__}"]
    conv, _ = first_conv(network, within=stem.conv)
    return {
        "conv": conv,
        "dropped": [n for n in stem.dropped if n in dict(network.named_modules())],
    }


def without_weights(model: Timm | TorchVision) -> nn.Module:
    """Returns the network on torch's meta device, which holds shapes and no weights."""
    with torch.device("meta"):
        return model.network(in_channels=3, num_classes=10, image_size=224)
