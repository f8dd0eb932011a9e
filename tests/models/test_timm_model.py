import huggingface_hub
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import nn
from tune_speed.errors import ConfigError, DataError
from tune_speed.models import Timm

RGB = {"in_channels": 3, "num_classes": 10, "image_size": 32}


def build_on_meta(image_size=32, **fields):
    with torch.device("meta"):
        return Timm(**fields).network(in_channels=3, num_classes=10, image_size=image_size)


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("resnet18", 11_181_642),
        ("resnet50", 23_528_522),
        ("densenet121", 6_964_106),
        ("efficientnet_b0", 4_020_358),
        ("mobilenetv2_100", 2_236_682),
        ("mobilenetv3_small_050", 578_474),
    ],
)
def test_timm_models_have_the_published_sizes(name, num_parameters):
    network = build_on_meta(name=name)
    assert sum(p.numel() for p in network.parameters()) == num_parameters


def test_position_embeddings_follow_the_image_size():
    # 85,806,346 at 224 pixels: 196 + 1 positions of 768 values. At 32 pixels: 4 + 1.
    count = sum(p.numel() for p in build_on_meta(name="vit_base_patch16_224").parameters())
    assert count == 85_806_346 - 192 * 768
    full = build_on_meta(name="vit_base_patch16_224", image_size=224)
    assert sum(p.numel() for p in full.parameters()) == 85_806_346


@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "resnet34",
        "resnet50",
        "resnet10t",
        "resnet50d",
        "resnetaa50",
        "resnetrs50",
        "resnetv2_50",
        "densenet121",
        "efficientnet_b0",
        "tf_efficientnet_b0",
        "mobilenetv2_100",
        "mobilenetv3_small_050",
        "regnety_002",
    ],
)
def test_cifar_stem_quarters_nothing(name):
    network = build_on_meta(name=name, stem="cifar").eval()
    native = build_on_meta(name=name).eval()
    sizes = [
        n.forward_features(torch.empty(1, 3, 128, 128, device="meta")).shape[-1]
        for n in (network, native)
    ]
    shrunk_by = 2 if "net" in name and name.startswith(("efficient", "tf_", "mobile", "reg")) else 4
    assert sizes[0] == shrunk_by * sizes[1]
