import math

import pytest
import timm
import torch
from starting import make_start
from torch import nn
from torch.nn import functional

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.models.libraries import TorchVision
from tune_speed.components.speedups.losses import Focal
from tune_speed.core.errors import ConfigError

START = make_start(torch.zeros(1, 3, 4, 4))
LOGITS = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 3, 4, 0])


def loss_of(config, logits=LOGITS, labels=LABELS, *, label_smoothing=0.0):
    return config.sum_of_losses(logits, labels, frac=0.5, label_smoothing=label_smoothing)


@pytest.mark.parametrize(
    ("num_classes", "prior", "expected"),
    [(10, 0.5, 6.93), (10, 0.01, 4.70), (10, 0.1, 3.25), (100, 0.5, 69.3), (100, 0.01, 5.60)],
)
def test_cross_entropy_that_a_sample_begins_with(num_classes, prior, expected):
    network = nn.Sequential(nn.Linear(8, num_classes))
    config = Focal(alpha=None, gamma=0.0, prior=prior)
    config.init_weights(network, START)
    logits = network(torch.zeros(3, 8))
    loss = loss_of(config, logits, torch.tensor([0, 1, 2])).item() / 3
    assert loss == pytest.approx(expected, rel=1e-3)
    closed_form = -math.log(prior) - (num_classes - 1) * math.log(1 - prior)
    assert loss == pytest.approx(closed_form, rel=1e-5)


def test_final_layer_begins_with_the_prior_and_small_weights():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 200), nn.Linear(200, 300))
    Focal(prior=0.03).init_weights(network, START)
    assert torch.allclose(network[1].bias.sigmoid(), torch.tensor(0.03))
    assert network[1].weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert network[0].weight.std().item() > 0.1


def test_without_gamma_and_alpha_it_is_binary_cross_entropy():
    targets = functional.one_hot(LABELS, 5).float()
    expected = functional.binary_cross_entropy_with_logits(LOGITS, targets, reduction="sum")
    assert loss_of(Focal(alpha=None, gamma=0.0)).item() == pytest.approx(expected.item(), rel=1e-6)


def test_loss_is_the_papers_formula():
    p = LOGITS.double().sigmoid()
    is_own = functional.one_hot(LABELS, 5).bool()
    p_t = torch.where(is_own, p, 1 - p)
    alpha_t = torch.where(is_own, 0.25, 0.75)
    expected = -(alpha_t * (1 - p_t) ** 2 * p_t.log()).sum()
    assert loss_of(Focal()).item() == pytest.approx(expected.item(), rel=1e-5)


def test_smoothing_spreads_a_share_of_the_target():
    targets = functional.one_hot(LABELS, 5) * 0.9 + 0.1 / 5
    expected = functional.binary_cross_entropy_with_logits(LOGITS, targets, reduction="sum")
    smoothed = loss_of(Focal(alpha=None, gamma=0.0), label_smoothing=0.1)
    assert smoothed.item() == pytest.approx(expected.item(), rel=1e-6)


def test_null_prior_leaves_the_final_layer_alone():
    network = ResNet20().network(in_channels=3, num_classes=10, image_size=8)
    before = network.classifier.weight.clone()
    Focal(prior=None).init_weights(network, START)
    assert torch.equal(network.classifier.weight, before)


def test_final_layer_may_be_a_convolution():
    config = TorchVision(name="squeezenet1_1")
    network = config.network(in_channels=3, num_classes=7, image_size=64)
    Focal(prior=0.2).check_model(network)
    Focal(prior=0.2).init_weights(network, START)
    assert torch.allclose(network.classifier[1].bias, torch.tensor(-math.log(4)))


def test_prior_needs_a_bias():
    network = nn.Sequential(nn.Linear(3, 2, bias=False))
    Focal(prior=None).check_model(network)
    with pytest.raises(ConfigError, match=r"focal\.prior: must have a final layer with a bias"):
        Focal().check_model(network)


def test_squeezenet_gives_logits_below_zero():
    """RetinaNet 3.3: the head is linear, so that classes begin with the prior, not with 1/2."""
    torch.manual_seed(0)
    network = TorchVision(name="squeezenet1_1").network(in_channels=3, num_classes=7, image_size=64)
    network = Focal().change_model(network, num_classes=7, seed=0).eval()
    Focal().init_weights(network, START)
    logits = network(torch.randn(2, 3, 64, 64))
    # Through the ReLU none was below 0. Around -4.6, by weights of a deviation of 0.01.
    assert (logits - math.log(0.01 / 0.99)).abs().max() < 1.5
    assert sum(isinstance(m, nn.ReLU) for m in network.classifier.modules()) == 0


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("deit_tiny_distilled_patch16_224", "head, head_dist"),
        ("crossvit_tiny_240", r"head\.0, head\.1"),
        ("levit_128s", r"head\.linear, head_dist\.linear"),
        ("volo_d1_224", "aux_head, head"),
    ],
)
def test_several_final_layers_are_refused(name, heads):
    network = timm.create_model(name, num_classes=7)
    with pytest.raises(ConfigError, match=f"one final layer, but got .* has 2: {heads}"):
        Focal().check_model(network)


def test_a_head_with_a_hidden_layer_has_one_final_layer():
    network = timm.create_model("caformer_s18", num_classes=7)
    Focal(prior=0.2).check_model(network)
    Focal(prior=0.2).init_weights(network, START)
    assert torch.allclose(network.head.fc.fc2.bias, torch.tensor(-math.log(4)))
    assert network.head.fc.fc1.bias.abs().max() < 1
