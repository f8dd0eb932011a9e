import pytest
import torch
import torch.nn.functional as F

from tune_speed.components.models.cifar import SpeedNet
from tune_speed.components.optim.optimizers import Muon, hidden_weights
from tune_speed.components.speedups.initial_weights import Whitening

CONVS = [f"blocks.{group}.conv{layer}.weight" for group in range(3) for layer in (1, 2)]


def build(in_channels=3, num_classes=10, **fields):
    torch.manual_seed(0)
    return SpeedNet(**fields).build(in_channels=in_channels, num_classes=num_classes, image_size=32)


def num_parameters(network):
    return sum(p.numel() for p in network.parameters())


def normalized(features, bias, *, eps):
    mean = features.mean(dim=(0, 2, 3), keepdim=True)
    variance = (features - mean).square().mean(dim=(0, 2, 3), keepdim=True)
    return (features - mean) / (variance + eps).sqrt() + bias.view(1, -1, 1, 1)


def logits_by_hand(weights, images, *, eps, scale):
    features = F.gelu(F.conv2d(images, weights["conv.weight"], weights["conv.bias"]))
    for group in range(3):
        for layer in (1, 2):
            name = f"blocks.{group}"
            features = F.conv2d(features, weights[f"{name}.conv{layer}.weight"], padding=1)
            if layer == 1:
                features = F.max_pool2d(features, 2)
            features = F.gelu(normalized(features, weights[f"{name}.norm{layer}.bias"], eps=eps))
    features = F.max_pool2d(features, 3).flatten(1)
    return features @ weights["classifier.weight"].T * scale


def test_parameters_by_hand():
    whitening = 24 * 3 * 2 * 2 + 24
    convs = 9 * (24 * 64 + 64 * 64 + 64 * 256 + 3 * 256 * 256)
    norm_biases = 2 * (64 + 256 + 256)
    head = 256 * 10
    assert num_parameters(build()) == whitening + convs + norm_biases + head == 1_971_640


def test_parameters_by_hand_of_grey_images_and_other_widths():
    network = build(in_channels=1, num_classes=7, width1=5, width2=6, width3=4)
    whitening = 8 * 4 + 8
    convs = 9 * (8 * 5 + 5 * 5 + 5 * 6 + 6 * 6 + 6 * 4 + 4 * 4)
    assert num_parameters(network) == whitening + convs + 2 * (5 + 6 + 4) + 4 * 7


def test_logits_are_those_of_plain_functions_with_the_same_weights():
    network = build(width1=8, width2=10, width3=12, norm_eps=1e-3, logit_scale=0.25).double()
    for bias in (p for name, p in network.named_parameters() if name.endswith("bias")):
        torch.nn.init.normal_(bias)
    images = torch.randn(5, 3, 32, 32, dtype=torch.float64)
    expected = logits_by_hand(dict(network.named_parameters()), images, eps=1e-3, scale=0.25)
    torch.testing.assert_close(network(images), expected, rtol=1e-10, atol=1e-10)


def test_evaluation_is_by_running_statistics_of_the_given_momentum():
    network, images = (
        build(width1=8, width2=8, width3=8, norm_momentum=0.25),
        torch.rand(4, 3, 9, 9),
    )
    norm = network.blocks[0].norm1
    seen = F.max_pool2d(network.blocks[0].conv1(network.stem(images)), 2)
    network(images)
    mean = seen.mean(dim=(0, 2, 3))
    torch.testing.assert_close(norm.running_mean, 0.25 * mean, rtol=1e-4, atol=1e-6)


def test_convolutions_begin_as_the_identity_on_the_channels_they_have():
    network, features = build(), torch.randn(2, 24, 7, 7)
    first = network.blocks[0].conv1(features)
    torch.testing.assert_close(first[:, :24], features, rtol=1e-5, atol=1e-5)
    assert first[:, 24:].std() > 0.1
    features = torch.randn(2, 64, 7, 7)
    torch.testing.assert_close(network.blocks[0].conv2(features), features, rtol=1e-5, atol=1e-5)


def test_fewer_filters_than_channels_begin_as_the_first_channels():
    conv, features = build(width1=10).blocks[0].conv1, torch.randn(2, 24, 5, 5)
    torch.testing.assert_close(conv(features), features[:, :10], rtol=1e-5, atol=1e-5)


def test_norms_train_their_bias_and_not_their_scale():
    network = build()
    names = {name for name, _ in network.named_parameters() if "norm" in name}
    assert names == {f"blocks.{g}.norm{n}.bias" for g in range(3) for n in (1, 2)}
    assert all((network.blocks[g].norm1.weight == 1).all() for g in range(3))


@pytest.mark.parametrize("size", [(2, 2), (3, 8), (8, 8), (33, 20)])
def test_images_of_any_size_are_taken(size):
    network = build(in_channels=2, width1=8, width2=8, width3=8)
    assert network(torch.randn(4, 2, *size)).shape == (4, 10)


@pytest.mark.parametrize("frozen", [True, False])
def test_muon_orthogonalises_the_six_convolutions_of_the_groups(frozen):
    network = Whitening(frozen=frozen).change_model(build(), num_classes=10, seed=0)
    hidden = hidden_weights(network)
    assert [name for name, p in network.named_parameters() if id(p) in hidden] == CONVS


def test_records_rates_reach_their_weights():
    network = Whitening(frozen=True).change_model(build(), num_classes=10, seed=0)
    config = Muon(lr=0.24, momentum=0.6, sgd_lr=1.7, bias_lr=106.0, sgd_momentum=0.85)
    optimizer = config.build(network, effective_batch_size=2000, fused=False)
    names = {id(p): name for name, p in network.named_parameters()}
    found = {
        names[id(p)]: (group["base_lr"], group["momentum"], group["orthogonal"])
        for group in optimizer.param_groups
        for p in group["params"]
    }
    biases = [name for name in names.values() if name.endswith("bias")]
    assert len(biases) == 7
    assert found == (
        dict.fromkeys(CONVS, (0.24, 0.6, True))
        | dict.fromkeys(biases, (106.0, 0.85, False))
        | {"classifier.weight": (1.7, 0.85, False)}
    )
