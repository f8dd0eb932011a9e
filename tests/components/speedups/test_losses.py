import math
from collections import Counter

import pytest
import timm
import torch
from helpers.components.techniques import make_start
from torch import nn
from torch.nn import functional

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.models.libraries import TorchVision
from tune_speed.components.speedups.losses import SUPERCLASSES, EasiestFirst, Focal, cifar100_groups
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
    with pytest.raises(ConfigError, match=r"focal\.prior:"):
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


GROUPS = (0, 0, 1)
# The table that is passed around as "sparse2coarse", a source other than the names.
COARSE = """
4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 6 13 15 3 15 0 11 1 10 12 14 16 9 11 5
5 19 8 8 15 13 14 17 18 10 16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 16 12 9 13
15 13 16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13
"""


def changed(config, *, num_classes=3):
    torch.manual_seed(0)
    network = ResNet20().network(in_channels=1, num_classes=num_classes, image_size=8)
    config.check_model(network)
    return config.change_model(network, num_classes=num_classes, seed=0)


def test_no_reference_errs_more_often_on_groups_than_on_classes():
    group_of, random = torch.tensor(cifar100_groups()), torch.Generator().manual_seed(0)
    for right in (0.0, 0.1, 0.5, 0.9, 1.0):
        labels = torch.randint(100, (10_000,), generator=random)
        guesses = torch.randint(100, (10_000,), generator=random)
        guesses = torch.where(torch.rand(10_000, generator=random) < right, labels, guesses)
        errors_on_classes = (guesses != labels).sum()
        errors_on_groups = (group_of[guesses] != group_of[labels]).sum()
        assert errors_on_groups <= errors_on_classes


def test_superclasses_of_cifar100_are_the_published_ones():
    assert cifar100_groups() == tuple(map(int, COARSE.split()))
    assert Counter(cifar100_groups()) == dict.fromkeys(range(20), 5)
    assert list(SUPERCLASSES) == sorted(SUPERCLASSES)
    names = sorted(name for five in SUPERCLASSES.values() for name in five.split())
    assert names[0] == "apple" and names[53] == "orange" and names[99] == "worm"


@pytest.mark.parametrize(
    ("frac", "expected"), [(0.01, 0), (0.2, 0), (0.3, 0.25), (0.4, 0.5), (0.6, 1), (1.0, 1)]
)
def test_classes_come_to_count_within_the_ramp(frac, expected):
    config = EasiestFirst(groups=GROUPS, start_frac=0.2, ramp_frac=0.4)
    assert config.weights(frac) == pytest.approx((1, expected))


def test_ramp_may_be_a_jump():
    config = EasiestFirst(groups=GROUPS, start_frac=0.5, ramp_frac=0.0)
    assert [config.weights(frac)[1] for frac in (0.5, 0.501)] == [0, 1]


def test_training_sees_both_heads_and_evaluation_one():
    network = changed(EasiestFirst(groups=GROUPS))
    images = torch.randn(4, 1, 8, 8)
    assert network(images).shape == (4, 5)
    assert network.eval()(images).shape == (4, 3)


def test_second_head_leaves_the_first_as_it_was():
    network = changed(EasiestFirst(groups=GROUPS)).eval()
    torch.manual_seed(0)
    plain = ResNet20().network(in_channels=1, num_classes=3, image_size=8).eval()
    images = torch.randn(4, 1, 8, 8)
    assert torch.equal(network(images), plain(images))


def test_loss_is_the_weighted_sum_of_both_tasks():
    config = EasiestFirst(groups=GROUPS, start_frac=0.2, ramp_frac=0.4)
    logits, labels = torch.randn(6, 5), torch.tensor([0, 1, 2, 2, 1, 0])
    loss = config.sum_of_losses(logits, labels, frac=0.3, label_smoothing=0.1)
    coarse = torch.tensor([0, 0, 1, 1, 0, 0])
    by_task = [
        functional.cross_entropy(part, target, label_smoothing=0.1, reduction="sum")
        for part, target in ((logits[:, 3:], coarse), (logits[:, :3], labels))
    ]
    assert loss.item() == pytest.approx((by_task[0] + 0.25 * by_task[1]).item(), rel=1e-6)


def test_before_their_start_classes_do_not_count():
    config = EasiestFirst(groups=GROUPS, start_frac=0.5)
    network = changed(config)
    logits = network(torch.randn(4, 1, 8, 8))
    config.sum_of_losses(logits, torch.tensor([0, 1, 2, 0]), frac=0.4, label_smoothing=0).backward()
    assert not network.classifier.classes.weight.grad.any()
    assert network.classifier.groups.weight.grad.any() and network.conv.weight.grad.any()


def test_one_group_without_delay_is_plain_training():
    config = EasiestFirst(groups=(0, 0, 0), start_frac=0.0, ramp_frac=0.0)
    network = changed(config)
    images, labels = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 1])
    logits = network(images)
    config.sum_of_losses(logits, labels, frac=0.1, label_smoothing=0).backward()
    torch.manual_seed(0)
    plain = ResNet20().network(in_channels=1, num_classes=3, image_size=8)
    functional.cross_entropy(plain(images), labels, reduction="sum").backward()
    # Sums of features and logits are made in another order.
    torch.testing.assert_close(network.conv.weight.grad, plain.conv.weight.grad)


def test_groups_for_other_classes_are_refused():
    with pytest.raises(ConfigError, match=r"easiest_first\.groups: .* 100 groups"):
        changed(EasiestFirst())
    assert changed(EasiestFirst(), num_classes=100)


@pytest.mark.parametrize("groups", [[0, 2], [1, 1], [], "cifar10", [0, -1]])
def test_impossible_groups_are_refused(groups):
    with pytest.raises(ValueError, match="groups"):
        EasiestFirst(groups=groups)


def test_network_that_ends_with_a_convolution_is_refused():
    config = TorchVision(name="squeezenet1_1")
    network = config.network(in_channels=3, num_classes=7, image_size=64)
    with pytest.raises(ConfigError, match=r"loss\.easiest_first:"):
        EasiestFirst().check_model(network)


def test_both_heads_are_on_the_devices_and_in_the_state():
    network = changed(EasiestFirst(groups=GROUPS)).to("meta")
    assert isinstance(network.classifier.groups, nn.Linear)
    assert all(parameter.is_meta for parameter in network.parameters())
