"""Operations are counted exactly, and counting leaves no trace."""

import pytest
import torch
from torch import nn
from training import CPU, Tiny

from tune_speed.components.models.resnet import ResNet20
from tune_speed.components.speedups.stochastic_depth import StochasticDepth
from tune_speed.training.flops import num_parameters, training_flop_per_sample

SHAPE = (3, 8, 8)
CONV_MACS = 8 * 8 * (3 * 3 * 3) * 8
LINEAR_MACS = 8 * 8 * 8 * 10


def make_network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(8 * 64, 10),
    )


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_count_is_that_of_the_closed_form(dtype: torch.dtype | None) -> None:
    counted = training_flop_per_sample(
        make_network(), image_shape=SHAPE, device=CPU, autocast_dtype=dtype
    )
    # Forward, gradients of the weights, and of the inputs, which the first layer does without.
    assert counted == 2 * (2 * CONV_MACS + 3 * LINEAR_MACS)


def test_deep_network_costs_about_three_forward_passes() -> None:
    network = ResNet20().network(in_channels=3, num_classes=10, image_size=32)
    counted = training_flop_per_sample(network, image_shape=(3, 32, 32), device=CPU)
    # He et al. 2016 count 40.8 million multiply-adds for the forward pass.
    assert counted == pytest.approx(3 * 2 * 40.8e6, rel=0.02)


def test_counting_leaves_no_trace() -> None:
    network = make_network().eval()
    network[0].weight.grad = torch.ones_like(network[0].weight)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    random = torch.get_rng_state()
    training_flop_per_sample(network, image_shape=SHAPE, device=CPU)
    assert torch.equal(torch.get_rng_state(), random)
    after = network.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert torch.equal(network[0].weight.grad, torch.ones_like(network[0].weight))
    assert all(p.grad is None for p in network[5].parameters()) and not network.training


def test_network_counts_its_own_passes_as_before() -> None:
    network = Tiny(crash_after=1).network(in_channels=3, num_classes=3, image_size=8)
    training_flop_per_sample(network, image_shape=SHAPE, device=CPU)
    network(torch.zeros(2, *SHAPE))


def test_no_gradient_is_needed_outside() -> None:
    with torch.no_grad():
        counted = training_flop_per_sample(make_network(), image_shape=SHAPE, device=CPU)
    assert counted == 2 * (2 * CONV_MACS + 3 * LINEAR_MACS)


def test_frozen_network_counts_its_forward_pass_alone() -> None:
    network = make_network().requires_grad_(False)
    counted = training_flop_per_sample(network, image_shape=SHAPE, device=CPU)
    assert counted == 2 * (CONV_MACS + LINEAR_MACS)


def test_compiled_network_counts_as_the_network_within() -> None:
    compiled = torch.compile(make_network())
    counted = training_flop_per_sample(compiled, image_shape=SHAPE, device=CPU)
    assert counted == 2 * (2 * CONV_MACS + 3 * LINEAR_MACS)


def test_network_that_the_counter_does_not_know_has_no_count() -> None:
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(3))
    assert training_flop_per_sample(network, image_shape=SHAPE, device=CPU) is None


def test_parameters_count_once_trainable_or_not() -> None:
    network = ResNet20().network(in_channels=3, num_classes=10, image_size=32)
    assert num_parameters(network) == 269_722
    layer = nn.Linear(4, 4).requires_grad_(False)
    assert num_parameters(nn.Sequential(layer, layer)) == 20


@pytest.mark.parametrize("rule", ["linear", "uniform"])
def test_skipped_blocks_count_as_often_as_they_are_executed(rule: str) -> None:
    """Huang et al. 2016: of L blocks (3L - 1)/4 and L/2; ResNet-20's nine cost the same but two."""
    config = StochasticDepth(rule=rule)
    plain = ResNet20().network(in_channels=3, num_classes=10, image_size=32)
    network = ResNet20().network(in_channels=3, num_classes=10, image_size=32)
    config.change_model(network, num_classes=10, seed=0)
    state = config.state(network)["draws"]
    whole, counted, again = (
        training_flop_per_sample(each, image_shape=(3, 32, 32), device=CPU)
        for each in (plain, network, network)
    )
    assert whole is not None and counted == again
    # By hand: multiply-adds of two convolutions a block, of which the first of a stage has half of
    # its inputs' channels, at a quarter of the pixels; three passes each.
    conv = 32 * 32 * 9 * 16 * 16
    blocks = [2 * conv] * 3 + [1.5 * conv, *[2 * conv] * 2] * 2
    survivals = config.survivals(9)
    saved = sum((1 - p) * 3 * 2 * block for p, block in zip(survivals, blocks, strict=True))
    assert counted == pytest.approx(whole - saved, rel=1e-6)
    assert torch.equal(config.state(network)["draws"], state)


def test_a_forward_pass_alone_is_counted_without_the_other_two() -> None:
    counted = training_flop_per_sample(
        make_network(), image_shape=SHAPE, device=CPU, has_backward=False
    )
    assert counted == 2 * (CONV_MACS + LINEAR_MACS)
