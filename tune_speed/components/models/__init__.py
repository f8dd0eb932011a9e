"""Models."""

from tune_speed.components.models import published
from tune_speed.components.models.base import ModelConfig
from tune_speed.components.models.cifar import PlainCNN, PreActResNet, ResNet, ResNet20, SpeedNet
from tune_speed.components.models.libraries import Timm, TorchVision

MODELS: dict[str, type[ModelConfig]] = {
    "resnet20": ResNet20,
    "resnet": ResNet,
    "preact_resnet": PreActResNet,
    "plain_cnn": PlainCNN,
    "speednet": SpeedNet,
    "resnet18": published.ResNet18,
    "resnet50": published.ResNet50,
    "densenet121": published.DenseNet121,
    "efficientnet_b0": published.EfficientNetB0,
    "mobilenet": published.MobileNet,
    "squeezenet": published.SqueezeNet,
    "alexnet": published.AlexNet,
    "vgg16_bn": published.VGG16BN,
    "vgg19": published.VGG19,
    "vgg19_bn": published.VGG19BN,
    "vit": published.ViT,
    "hybrid": published.Hybrid,
    "timm": Timm,
    "torchvision": TorchVision,
}
