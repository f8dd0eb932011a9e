from functools import cache

import pytest
import timm
import torch
import torchvision
from torch import nn

from tune_speed.components.models import MODELS
from tune_speed.components.speedups.modules.residual import find_blocks

MAKERS = {
    "torchvision resnet18": lambda: torchvision.models.resnet18(num_classes=2),
    "torchvision resnext50": lambda: torchvision.models.resnext50_32x4d(num_classes=2),
    "timm resnet18": lambda: timm.create_model("resnet18", num_classes=2),
    # Blur pooling inside of blocks, and squeeze-and-excitation at the end of branches.
    "timm resnetblur18": lambda: timm.create_model("resnetblur18", num_classes=2),
    "timm seresnet50": lambda: timm.create_model("seresnet50", num_classes=2),
    "resnet20": lambda: ours("resnet20"),
    "preact_resnet": lambda: ours("preact_resnet"),
}


def ours(name):
    return MODELS[name]().network(in_channels=3, num_classes=2, image_size=8)


@cache
def blocks_of(name):
    torch.manual_seed(0)
    return find_blocks(MAKERS[name]())


@pytest.mark.parametrize("name", MAKERS)
def test_parts_make_up_the_whole_block(name):
    blocks = blocks_of(name)
    assert len(blocks) >= 8
    for module, parts in (blocks[0], blocks[-1]):
        # The first norm scales by 0 in some networks, which would hide the branch.
        for norm in (m for m in module.modules() if isinstance(m, nn.BatchNorm2d)):
            nn.init.uniform_(norm.weight)
        conv = next(m for m in module.modules() if isinstance(m, nn.Conv2d))
        features = torch.randn(2, conv.in_channels, 8, 8)
        module.eval()
        whole = module(features)
        assert torch.equal(parts.join(parts.branch(features), parts.shortcut(features)), whole)


@pytest.mark.parametrize("name", MAKERS)
def test_joining_nothing_makes_a_new_tensor(name):
    module, parts = blocks_of(name)[0]
    conv = next(m for m in module.modules() if isinstance(m, nn.Conv2d))
    shortcut = parts.shortcut(torch.randn(2, conv.in_channels, 8, 8)).detach()
    before = shortcut.clone()
    joined = parts.join(torch.zeros(()), shortcut)
    assert torch.equal(shortcut, before)
    # Pre-activation blocks have no ReLU after the sum.
    assert torch.equal(joined, before if name == "preact_resnet" else before.relu())
