"""Models, one file an architecture family."""

from tune_speed.models.base import ModelConfig
from tune_speed.models.resnet20 import ResNet20
from tune_speed.models.timm_model import Timm
from tune_speed.models.torchvision_model import TorchVision

MODELS: dict[str, type[ModelConfig]] = {
    "resnet20": ResNet20,
    "timm": Timm,
    "torchvision": TorchVision,
}
"""Every model family by the name it has in YAML."""

__all__ = ["MODELS", "ModelConfig", "ResNet20", "Timm", "TorchVision"]
