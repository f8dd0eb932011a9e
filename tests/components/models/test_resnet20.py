import math

import pytest
import torch
from torch import nn

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.models.networks.cifar import BasicBlock


def build(config=None):
    torch.manual_seed(0)
    return (config or ResNet20()).build(in_channels=3, num_classes=10, image_size=32)


def test_resnet20_has_the_published_size():
    network = build()
    assert sum(p.numel() for p in network.parameters()) == 269_722
    kinds = [type(module) for module in network.modules()]
    assert kinds.count(nn.Conv2d) == 19
    assert kinds.count(nn.Linear) == 1


def test_both_stems_are_the_same_network():
    native, cifar = build(ResNet20(stem="native")), build(ResNet20(stem="cifar"))
    assert all(map(torch.equal, native.parameters(), cifar.parameters()))


def test_shortcut_takes_every_second_pixel_and_adds_zero_channels():
    features = torch.arange(2 * 4 * 4.0).reshape(1, 2, 4, 4)
    shortcut = BasicBlock(2, 4, stride=2).shortcut(features)
    assert shortcut.shape == (1, 4, 2, 2)
    assert shortcut[0, 1].tolist() == [[0, 2], [8, 10]]
    assert shortcut[0, 2].tolist() == [[16, 18], [24, 26]]
    assert shortcut[0, [0, 3]].count_nonzero() == 0


def test_block_is_the_identity_for_positive_features_when_its_branch_is_zero():
    block = BasicBlock(3, 3, stride=1)
    nn.init.zeros_(block.norm2.weight)
    features = torch.rand(2, 3, 5, 5)
    assert torch.equal(block(features), features)


def test_convolutions_are_drawn_for_relu():
    weight = build().blocks[-1].conv2.weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.02)


def test_dropout_acts_in_training_alone():
    network = build(ResNet20(dropout=0.5))
    images = torch.randn(2, 3, 32, 32)
    assert not torch.equal(network(images), network(images))
    network.eval()
    assert torch.equal(network(images), network(images))


def test_channels_last_gives_the_same_logits():
    network, images = build().eval(), torch.randn(2, 3, 32, 32)
    expected = network(images)
    network.to(memory_format=torch.channels_last)
    actual = network(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
