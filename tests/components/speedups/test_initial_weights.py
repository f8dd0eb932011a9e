import math
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.components.techniques import make_start
from helpers.training.tiny import CPU, Tiny, make_recipe, make_splits, make_workload, to_end
from torch import nn

from tune_speed.components.models.cifar import ResNet20, SpeedNet
from tune_speed.components.models.libraries import Timm, TorchVision
from tune_speed.components.models.networks.cifar import CifarPreActResNet
from tune_speed.components.speedups.base import Shape
from tune_speed.components.speedups.initial_weights import (
    Kaiming,
    PretrainOther,
    PretrainSubset,
    Whitening,
)
from tune_speed.components.speedups.modules.initial_weights import statistics
from tune_speed.core.errors import ConfigError
from tune_speed.data.datasets.builtin import Digits
from tune_speed.data.datasets.image_folder import ImageFolder
from tune_speed.training.build import Job
from tune_speed.training.loop import train

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
    with pytest.raises(ConfigError, match=r"kaiming\.zero_init_last:"):
        Kaiming(zero_init_last=True).check_model(network)


def test_it_does_not_go_with_weights_that_were_learned():
    recipe = make_recipe(model=Timm(name="resnet10t", weights_file="w.pt"))
    (problem,) = Kaiming().refusals(recipe)
    assert problem.path == "model.weights_file" and problem.given == "w.pt"
    assert not list(Kaiming().refusals(make_recipe()))


def test_a_classifier_that_is_a_convolution_is_spared():
    network = build(TorchVision(name="squeezenet1_1"))
    head, hidden = network.classifier[1], network.features[0]
    before, drawn = head.weight.detach().clone(), hidden.weight.detach().clone()
    Kaiming().init_weights(network, START)
    assert torch.equal(head.weight, before) and not torch.equal(hidden.weight, drawn)
    logits = network.eval()(torch.randn(64, 3, 32, 32))
    loss = nn.functional.cross_entropy(logits, torch.arange(64) % 10).item()
    assert loss == pytest.approx(math.log(10), rel=0.05)


def smooth_images(count=60, size=8, channels=3):
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
    with pytest.raises(ConfigError, match=r"speedups\.init\.whitening:"):
        Whitening().check_model(network)


@pytest.mark.parametrize(("bias_frac", "num_trained"), [(0.0, 0), (0.375, 75), (1.0, 200)])
def test_bias_is_trained_in_its_share_of_the_steps(bias_frac, num_trained):
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
    with pytest.raises(ConfigError, match=r"whitening\.bias_frac:"):
        Whitening(bias_frac=0.5).check_model(network)


IMAGES = torch.arange(100.0).reshape(-1, 1, 1, 1)


class Recorder:
    def __init__(self):
        self.models, self.batches = [], []

    def __call__(self, model, batches, num_steps):
        self.models.append(model)
        self.batches += [images.flatten().tolist() for images, _ in batches]
        assert len(self.batches) <= num_steps


def pretrained(**fields):
    recorder, model = Recorder(), nn.Linear(1, 1)
    start = make_start(IMAGES, batch_size=8, fit=recorder)
    PretrainSubset(**fields).init_weights(model, start)
    assert recorder.models == [model]
    return recorder.batches


@pytest.mark.parametrize(("part", "num_batches"), [(0.01, 1), (0.08, 1), (0.5, 7), (1.0, 13)])
def test_part_is_rounded_up_to_whole_batches(part, num_batches):
    assert len(pretrained(part=part)) == num_batches


def test_each_pass_shows_the_same_images():
    batches = pretrained(part=0.2, epochs=3)
    assert batches[:3] == batches[3:6] == batches[6:]
    seen = [image for batch in batches[:3] for image in batch]
    assert len(set(seen)) == len(seen) == 24


def test_part_is_not_the_beginning_of_the_run():
    first, _ = next(make_start(IMAGES, batch_size=8).batches(0))
    assert pretrained(part=0.01)[0] != first.flatten().tolist()


FIELDS = {"dataset": {"name": "digits"}, "train_samples": 100}


class Learns:
    def __init__(self):
        self.models, self.labels, self.sizes = [], [], []

    def __call__(self, model, batches, num_steps):
        self.models.append(model)
        for images, labels in batches:
            assert len(model(images)) == len(labels)
            self.sizes.append(len(labels))
            self.labels += labels.tolist()
        assert len(self.sizes) <= num_steps
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 1


def network(num_classes=3):
    torch.manual_seed(0)
    return Tiny(norm="batch").build(in_channels=1, num_classes=num_classes, image_size=8)


def test_all_but_the_final_layer_is_taken_over():
    model, before, learns = network(), network().state_dict(), Learns()
    PretrainOther(**FIELDS).init_weights(model, make_start(torch.zeros(4, 1, 8, 8), fit=learns))
    for name, value in model.state_dict().items():
        if name.startswith("classifier"):
            assert torch.equal(value, before[name]), name
        elif name in dict(model.named_parameters()):
            assert torch.equal(value, before[name] + 1), name
        elif name != "norm.num_batches_tracked":  # Statistics that forward passes have moved.
            assert not torch.equal(value, before[name]), name
    [learned] = learns.models
    assert learned.classifier.out_features == 10 and model.classifier.out_features == 3


def test_every_image_of_the_other_set_is_seen_once_a_pass():
    learns = Learns()
    config = PretrainOther(**FIELDS, epochs=2, batch_size=32)
    config.init_weights(network(), make_start(torch.zeros(4, 1, 8, 8), fit=learns))
    assert learns.sizes == [32, 32, 32, 4] * 2
    assert set(learns.labels) == set(range(10))


def test_images_of_other_channels_are_refused():
    model = Tiny().build(in_channels=3, num_classes=3, image_size=8)
    with pytest.raises(ConfigError, match=r"must have images of 3 channels.*1 channels"):
        PretrainOther(**FIELDS).init_weights(model, make_start(torch.zeros(4, 3, 8, 8)))


def test_path_of_the_data_is_made_absolute():
    folder = {"name": "image_folder", "root": "somewhere", "image_size": 8}
    recipe = make_recipe(speedups={"init": {"pretrain_other": {"dataset": folder}}}).located()
    located = recipe.speedups.init
    assert isinstance(located, PretrainOther) and isinstance(located.dataset, ImageFolder)
    assert located.dataset.root == str(Path("somewhere").absolute())
    assert isinstance(PretrainOther(**FIELDS).located().dataset, Digits)


def test_run_begins_with_what_was_learned_and_its_time_is_known_apart():
    def run(**speedups):
        recipe = make_recipe(model=Tiny(norm="batch"), epochs=1.0, speedups=speedups)
        return to_end(train(Job(make_workload(), recipe, make_splits(), seed=0, device=CPU)))

    plain, pretrained = run(), run(init={"pretrain_other": FIELDS})
    assert pretrained.init_s > 0 and plain.init_s == 0
    assert pretrained.evaluations[0].loss == plain.evaluations[0].loss
    assert pretrained.evaluations[0].train_s == 0
    assert pretrained.evaluations[-1].loss != plain.evaluations[-1].loss


def test_convolution_that_gives_logits_is_replaced_too():
    model, learns = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 3, 1)), Learns()
    whole = nn.Sequential(model, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    start = make_start(torch.zeros(4, 1, 8, 8), fit=learns)
    PretrainOther(**FIELDS).init_weights(whole, start)
    [learned] = learns.models
    assert learned[0][1].out_channels == 10 and whole[0][1].out_channels == 3
