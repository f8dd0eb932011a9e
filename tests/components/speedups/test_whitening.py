import numpy as np
import pytest
import torch
from starting import make_start
from torch import nn

from tune_speed.components.models.cifar import ResNet20, SpeedNet
from tune_speed.components.speedups.base import Shape
from tune_speed.components.speedups.initial_weights import Whitening
from tune_speed.components.speedups.modules.initial_weights import statistics
from tune_speed.core.errors import ConfigError


def smooth_images(count=60, size=8, channels=3):
    """Returns images whose neighbouring pixels and channels resemble each other."""
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(count, channels, size + 4, size + 4, generator=generator)
    mixed = noise + noise.sum(dim=1, keepdim=True) + 0.3
    return nn.functional.avg_pool2d(mixed, 5, stride=1)


def whitened(conv, images, **fields):
    network = nn.Sequential(conv, nn.Flatten())
    config = Whitening(**fields)
    config.check_model(network)
    network = config.change_model(network, num_classes=10, seed=0)
    config.init_weights(network, make_start(images))
    return conv


def covariance(outputs):
    """Returns the covariance of channels over images and places, by NumPy."""
    return np.cov(outputs.detach().double().transpose(0, 1).flatten(1).numpy(), bias=True)


@pytest.mark.parametrize("geometry", [{}, {"padding": 1}, {"stride": 2, "dilation": 2}])
@pytest.mark.parametrize("has_bias", [False, True])
def test_outputs_have_the_identity_as_covariance(geometry, has_bias):
    images = smooth_images()
    conv = nn.Conv2d(3, 54, 3, bias=has_bias, **geometry)
    whitened(conv, images, eps=1e-9)
    outputs = conv(images)[:, :27]
    assert covariance(outputs) == pytest.approx(np.eye(27), abs=2e-3)


def test_eps_damps_patterns_that_hardly_occur():
    images, eps = smooth_images(), 0.05
    conv = whitened(nn.Conv2d(3, 8, 2), images, eps=eps)
    _, patch_covariance = statistics(conv, [images], count=60)
    largest = np.linalg.eigvalsh(patch_covariance.numpy())[::-1][:4]
    expected = np.diag(largest / (largest + eps))
    assert covariance(conv(images)[:, :4]) == pytest.approx(expected, abs=1e-5)


def test_filters_come_in_pairs_of_opposite_sign_and_others_stay():
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 11, 2)
    fresh = conv.weight.detach().clone()
    whitened(conv, smooth_images(channels=1))
    weight = conv.weight.detach()
    assert torch.equal(weight[:4], -weight[4:8]) and torch.equal(weight[8:], fresh[8:])
    assert not torch.equal(weight[:8], fresh[:8]) and (conv.bias == 0).all()


def test_statistics_are_those_of_all_patches():
    images = smooth_images(count=5, size=6)
    conv = nn.Conv2d(3, 4, (2, 3))
    windows = np.lib.stride_tricks.sliding_window_view(images.numpy(), (3, 2, 3), axis=(1, 2, 3))
    patches = windows.reshape(-1, 18).astype(np.float64)
    mean, found = statistics(conv, torch.split(images, 2), count=5)
    assert mean.numpy() == pytest.approx(patches.mean(axis=0), abs=1e-6)
    assert found.numpy() == pytest.approx(np.cov(patches.T, bias=True), abs=1e-5)


def test_unfolding_in_parts_changes_nothing(monkeypatch):
    images, conv = smooth_images(count=7), nn.Conv2d(3, 4, 3)
    whole = statistics(conv, [images], count=7)
    monkeypatch.setattr("tune_speed.components.speedups.modules.initial_weights.MOST_VALUES", 1)
    parts = statistics(conv, [images], count=7)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole, parts, strict=True))


def test_only_so_many_images_are_looked_at():
    images, conv = smooth_images(count=10), nn.Conv2d(3, 4, 3)
    asked = iter([images[:4], images[4:8]])
    mean, _ = statistics(conv, asked, count=6)
    expected, _ = statistics(conv, [images[:6]], count=100)
    assert torch.allclose(mean, expected)


def test_speednet_begins_with_every_direction_whitened_and_its_opposite():
    images, config = smooth_images(), Whitening(eps=1e-9, frozen=True)
    network = SpeedNet(width1=4, width2=4, width3=4)
    network = network.build(in_channels=3, num_classes=10, image_size=8)
    config.check_model(network)
    config.init_weights(config.change_model(network, num_classes=10, seed=0), make_start(images))
    outputs = network.conv(images)
    assert covariance(outputs[:, :12]) == pytest.approx(np.eye(12), abs=2e-3)
    assert torch.equal(outputs[:, 12:], -outputs[:, :12])
    assert not network.conv.weight.requires_grad and network.conv.bias.requires_grad


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_filters_get_no_gradient(frozen):
    network = ResNet20().network(in_channels=3, num_classes=10, image_size=8)
    network = Whitening(frozen=frozen).change_model(network, num_classes=10, seed=0)
    network(smooth_images(count=4)).sum().backward()
    assert (network.conv.weight.grad is None) == frozen
    assert network.blocks[0].conv1.weight.grad is not None


@pytest.mark.parametrize(
    "network", [nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), nn.Conv2d(4, 4, 3, groups=2)]
)
def test_network_without_a_plain_first_convolution_is_refused(network):
    with pytest.raises(ConfigError, match=r"speedups\.init\.whitening: must have a network that"):
        Whitening().check_model(network)


@pytest.mark.parametrize(("bias_frac", "num_trained"), [(0.0, 0), (0.375, 75), (1.0, 200)])
def test_bias_is_trained_in_its_share_of_the_steps(bias_frac, num_trained):
    """Of 8 epochs of 25 steps, 3 epochs."""
    config = Whitening(bias_frac=bias_frac)
    shapes = [config.shape(Shape(8, 8), frac=step / 200) for step in range(200)]
    assert [not shape.is_bias_frozen for shape in shapes] == [k < num_trained for k in range(200)]


@pytest.mark.parametrize("frozen", [True, False])
def test_bias_gets_no_gradient_while_it_is_frozen_and_gets_one_again(frozen):
    config = Whitening(frozen=frozen, bias_frac=0.5)
    network = SpeedNet(width1=4, width2=4, width3=4)
    network = network.build(in_channels=3, num_classes=10, image_size=8)
    network = config.change_model(network, num_classes=10, seed=0)
    for is_bias_frozen in (False, True, False):
        config.begin_step(network, Shape(8, 8, is_bias_frozen=is_bias_frozen))
        network.zero_grad(set_to_none=True)
        network(smooth_images(count=4)).sum().backward()
        without = {name for name, p in network.named_parameters() if p.grad is None}
        expected = {"conv.weight": frozen, "conv.bias": is_bias_frozen}
        assert without == {name for name, has_none in expected.items() if has_none}


def test_bias_that_the_network_lacks_cannot_be_frozen():
    network = ResNet20().network(in_channels=3, num_classes=10, image_size=8)
    Whitening().check_model(network)
    with pytest.raises(ConfigError, match=r"whitening\.bias_frac: must be 1 where .* has no bias"):
        Whitening(bias_frac=0.5).check_model(network)
