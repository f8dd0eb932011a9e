import math

import pytest
import torch
from starting import make_start
from torch import nn
from training import make_recipe

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.models.libraries import Timm, TorchVision
from tune_speed.components.models.networks.cifar import CifarPreActResNet
from tune_speed.components.speedups.initial_weights import Kaiming
from tune_speed.core.errors import ConfigError

START = make_start(torch.zeros(1, 3, 4, 4))


def build(config):
    torch.manual_seed(0)
    return config.network(in_channels=3, num_classes=10, image_size=32)


def test_weights_have_the_deviation_of_the_formula():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(64, 128, 3), nn.Conv2d(128, 128, 5, groups=32))
    Kaiming().init_weights(network, START)
    for conv, fan_out in zip(network, (9 * 128, 25 * 4), strict=True):
        assert conv.weight.mean().item() == pytest.approx(0, abs=0.005)
        assert conv.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.02)


def test_norms_are_one_and_zero_and_biases_zero():
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4, affine=False), nn.Linear(4, 2)
    )
    for parameter in network.parameters():
        nn.init.constant_(parameter, 3.0)
    Kaiming().init_weights(network, START)
    assert (network[1].weight == 1).all() and (network[1].bias == 0).all()
    assert (network[0].bias == 0).all() and (network[3].bias == 0).all()
    assert (network[3].weight == 3).all()


def test_weights_follow_from_the_seed():
    weights = []
    for seed in (1, 1, 2):
        network = build(ResNet20())
        torch.manual_seed(seed)
        Kaiming().init_weights(network, START)
        weights.append(network.conv.weight.detach())
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("config", "num_blocks"),
    [(ResNet20(), 9), (TorchVision(name="resnet18"), 8), (Timm(name="resnet26"), 8)],
)
def test_zeroed_blocks_begin_as_their_shortcuts(config, num_blocks):
    network = build(config).eval()
    kaiming = Kaiming(zero_init_last=True)
    kaiming.check_model(network)
    kaiming.init_weights(network, START)
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert sum((norm.weight == 0).all().item() for norm in norms) == num_blocks


def test_zeroed_block_of_one_shape_is_relu_of_its_input():
    network = build(ResNet20()).eval()
    Kaiming(zero_init_last=True).init_weights(network, START)
    features = torch.randn(2, 16, 4, 4)
    assert torch.equal(network.blocks[0](features), features.relu())


@pytest.mark.parametrize(
    "network",
    [
        CifarPreActResNet(in_channels=3, num_classes=10, blocks_per_stage=1, dropout=0.0),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
    ],
)
def test_zero_init_last_without_such_a_block_is_refused(network):
    Kaiming().check_model(network)
    with pytest.raises(ConfigError, match=r"kaiming\.zero_init_last: must have a network with res"):
        Kaiming(zero_init_last=True).check_model(network)


def test_it_does_not_go_with_weights_that_were_learned():
    recipe = make_recipe(model=Timm(name="resnet10t", weights_file="w.pt"))
    (problem,) = Kaiming().refusals(recipe)
    assert problem.path == "model.weights_file" and problem.given == "w.pt"
    assert not list(Kaiming().refusals(make_recipe()))


def test_a_classifier_that_is_a_convolution_is_spared():
    """A linear layer is; by fan_out, its 10 classes, the first loss was 7.87 instead of 2.30."""
    network = build(TorchVision(name="squeezenet1_1"))
    head, hidden = network.classifier[1], network.features[0]
    before, drawn = head.weight.detach().clone(), hidden.weight.detach().clone()
    Kaiming().init_weights(network, START)
    assert torch.equal(head.weight, before) and not torch.equal(hidden.weight, drawn)
    logits = network.eval()(torch.randn(64, 3, 32, 32))
    loss = nn.functional.cross_entropy(logits, torch.arange(64) % 10).item()
    assert loss == pytest.approx(math.log(10), rel=0.05)
