"""Models, one file an architecture family."""

from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.plain_cnn import PlainCNN
from tune_speed.components.models.published import (
    VGG16BN,
    VGG19,
    VGG19BN,
    AlexNet,
    DenseNet121,
    EfficientNetB0,
    Hybrid,
    MobileNet,
    ResNet18,
    ResNet50,
    SqueezeNet,
    ViT,
)
from tune_speed.components.models.resnet import PreActResNet, ResNet, ResNet20
from tune_speed.components.models.speednet import SpeedNet
from tune_speed.components.models.timm_model import Timm
from tune_speed.components.models.torchvision_model import TorchVision

MODELS: dict[str, type[ModelConfig]] = {
    "resnet20": ResNet20,
    "resnet": ResNet,
    "preact_resnet": PreActResNet,
    "plain_cnn": PlainCNN,
    "speednet": SpeedNet,
    "resnet18": ResNet18,
    "resnet50": ResNet50,
    "densenet121": DenseNet121,
    "efficientnet_b0": EfficientNetB0,
    "mobilenet": MobileNet,
    "squeezenet": SqueezeNet,
    "alexnet": AlexNet,
    "vgg16_bn": VGG16BN,
    "vgg19": VGG19,
    "vgg19_bn": VGG19BN,
    "vit": ViT,
    "hybrid": Hybrid,
    "timm": Timm,
    "torchvision": TorchVision,
}
"""Every model family by the name it has in YAML."""

__all__ = ["MODELS", "ModelConfig", "ResNet20", "Timm", "TorchVision"]
