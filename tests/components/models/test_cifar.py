import math

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import nn

from tune_speed.components.models import MODELS
from tune_speed.components.models.cifar import PlainCNN, PreActResNet, ResNet, ResNet20, SpeedNet
from tune_speed.components.models.networks.cifar import BasicBlock, PreActBlock
from tune_speed.components.optim.optimizers import Muon, hidden_weights
from tune_speed.components.speedups.initial_weights import Whitening

RGB = {"in_channels": 3, "num_classes": 10, "image_size": 32}
OWN = [ResNet, PreActResNet]


def num_convolutions(network):
    return sum(isinstance(module, nn.Conv2d) for module in network.modules())


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize(
    ("depth", "num_parameters"),
    # Table 6 of He et al. (2016): 0.27 M, 0.46 M, 0.66 M, 0.85 M, 1.7 M.
    [(20, 0.27e6), (32, 0.46e6), (44, 0.66e6), (56, 0.85e6), (110, 1.7e6)],
)
def test_depth_counts_convolutions_and_the_classifier(kind, depth, num_parameters):
    with torch.device("meta"):
        network = kind(depth=depth).network(**RGB)
    assert num_convolutions(network) == depth - 1
    assert sum(isinstance(module, nn.Linear) for module in network.modules()) == 1
    count = sum(p.numel() for p in network.parameters())
    assert count == pytest.approx(num_parameters, rel=0.025)


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize(
    ("depth", "message"),
    [
        (21, "must be 6n [+] 2, .* 20 or 26"),
        (18, "14 or 20"),
        (1200, "1196 or 1202"),
        (2, "greater than or equal to 8"),
        (1208, "less than or equal to 1202"),
        (20.0, "valid integer"),
    ],
)
def test_other_depths_are_refused(kind, depth, message):
    with pytest.raises(ValidationError, match=message):
        kind(depth=depth)


def test_resnet_of_depth_20_is_resnet20():
    networks = []
    for config in (ResNet(depth=20), ResNet20()):
        torch.manual_seed(3)
        networks.append(config.build(**RGB))
    one, other = (network.state_dict() for network in networks)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


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


def build_of_preact_resnet(**fields):
    torch.manual_seed(0)
    config = PreActResNet(**fields)
    return config.build(in_channels=3, num_classes=10, image_size=32)


def transition(seed=0):
    torch.manual_seed(seed)
    return PreActBlock(4, 8, stride=2, is_activated=False)


def test_preact_resnet_has_as_many_parameters_as_resnet20():
    network = build_of_preact_resnet()
    assert sum(p.numel() for p in network.parameters()) == 269_722
    kinds = [type(module) for module in network.modules()]
    assert (kinds.count(nn.Conv2d), kinds.count(nn.Linear)) == (19, 1)


def test_blocks_that_keep_the_shape_are_the_identity_when_their_branch_is_zero():
    keeping = [block for block in build_of_preact_resnet().blocks if not block.changes_shape]
    assert len(keeping) == 7
    for block in keeping:
        nn.init.zeros_(block.conv2.weight)
        features = torch.randn(2, block.conv1.in_channels, 6, 6)
        assert torch.equal(block(features), features)


def test_gradient_takes_the_shortcut_undiminished():
    block = build_of_preact_resnet().blocks[4]
    features = torch.randn(2, 32, 6, 6, requires_grad=True)
    upstream = torch.randn(2, 32, 6, 6)
    (whole,) = torch.autograd.grad(block(features), features, upstream)
    (branch,) = torch.autograd.grad(block.branch(features), features, upstream)
    torch.testing.assert_close(whole - branch, upstream)


def test_branch_and_shortcut_of_a_transition_share_the_first_norm_and_relu():
    block, features = transition(), torch.randn(2, 4, 6, 6)
    active = block.activation(features)
    assert (active >= 0).all()
    assert torch.equal(block.shortcut(features)[:, 2:6], active[:, :, ::2, ::2])
    assert block.shortcut(features)[:, [0, 1, 6, 7]].count_nonzero() == 0
    hidden = block.norm2(block.conv1(active)).relu()
    assert torch.equal(block.branch(features), block.conv2(hidden))


def test_a_transition_counts_each_batch_once_skipped_or_not():
    block, skipped, features = transition(), transition(), torch.randn(2, 4, 6, 6)
    block(features)
    skipped.shortcut(features)
    norm, other = block.activation[0], skipped.activation[0]
    assert norm.num_batches_tracked == other.num_batches_tracked == 1
    assert torch.equal(norm.running_mean, other.running_mean)
    assert skipped.norm2.num_batches_tracked == 0


def test_first_activation_comes_before_the_paths_split_and_the_last_after_the_sum():
    network = build_of_preact_resnet().eval()
    features = network.stem(torch.randn(2, 3, 8, 8))
    assert (features >= 0).all() and (features == 0).any()
    assert torch.equal(network.blocks[0].activation(features), features)
    last = network.blocks(features)
    assert (last < 0).any()
    pooled = network.last_norm(last).relu().mean(dim=(2, 3))
    assert torch.equal(network.head(last), network.classifier(pooled))


@pytest.mark.parametrize("stage", [0, 3, 6])
def test_convolutions_are_drawn_for_relu_of_preact_resnet(stage):
    weight = build_of_preact_resnet(depth=26).blocks[stage + 1].conv2.weight
    expected = math.sqrt(2 / (9 * weight.shape[0]))
    assert weight.std().item() == pytest.approx(expected, rel=0.03)


def build_of_plain_cnn(**fields):
    torch.manual_seed(0)
    return PlainCNN(**fields).build(in_channels=3, num_classes=10, image_size=32)


def test_plain_cnn_has_the_size_of_the_all_convolutional_net():
    # Nine convolutions with biases: 3x3 but the last two, of 96, 192 and 10 channels.
    pairs = [(3, 96), (96, 96), (96, 96), (96, 192), (192, 192), (192, 192), (192, 192)]
    expected = sum(9 * before * after + after for before, after in pairs)
    expected += 192 * 192 + 192 + 192 * 10 + 10
    assert sum(p.numel() for p in build_of_plain_cnn().parameters()) == expected == 1_369_738


def test_it_shrinks_images_by_strides_alone():
    network = build_of_plain_cnn()
    kinds = {type(module) for module in network.modules()}
    assert not kinds & {nn.MaxPool2d, nn.AvgPool2d, nn.Linear, nn.AdaptiveAvgPool2d}
    strides = [m.stride[0] for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert strides == [1, 1, 2, 1, 1, 2, 1, 1, 1]
    assert network.blocks(network.stem(torch.randn(1, 3, 32, 32))).shape == (1, 192, 8, 8)


def test_batch_norm_takes_the_place_of_the_biases_but_the_last():
    network = build_of_plain_cnn(batch_norm=True)
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    biased = [m for m in network.modules() if isinstance(m, nn.Conv2d) and m.bias is not None]
    assert len(norms) == 8
    assert biased == [network.classifier]


def test_dropouts_stand_before_the_net_and_after_its_strides():
    network = build_of_plain_cnn(input_dropout=0.1, dropout=0.3)
    rates = [m.p for m in network.modules() if isinstance(m, nn.Dropout)]
    assert rates == [0.1, 0.3, 0.3]


def test_features_keep_their_scale_over_the_layers():
    network = build_of_plain_cnn(input_dropout=0.0, dropout=0.0)
    weight = network.blocks[4][0].weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (9 * 192)), rel=0.02)
    logits = network(torch.randn(16, 3, 32, 32))
    assert 0.05 < logits.std().item() < 5


OWN_OWN_NETWORKS = ["resnet20", "resnet", "preact_resnet", "plain_cnn", "speednet"]
RESIDUAL = ["resnet20", "preact_resnet"]


def build_of_own_networks(name):
    torch.manual_seed(0)
    return MODELS[name]().build(in_channels=3, num_classes=10, image_size=32)


@pytest.mark.parametrize("name", OWN_OWN_NETWORKS)
def test_network_is_stem_then_blocks_then_head(name):
    network, images = build_of_own_networks(name).eval(), torch.randn(2, 3, 16, 16)
    features = network.stem(images)
    for block in network.blocks:
        features = block(features)
    assert torch.equal(network.head(features), network(images))


@pytest.mark.parametrize("name", RESIDUAL)
def test_block_is_its_branch_joined_with_its_shortcut(name):
    network = build_of_own_networks(name).eval()
    features = network.stem(torch.randn(2, 3, 16, 16))
    for block in network.blocks:
        joined = block.join(block.branch(features), block.shortcut(features))
        assert torch.equal(block(features), joined)
        features = joined


@pytest.mark.parametrize("name", RESIDUAL)
def test_skipping_a_block_needs_no_branch_and_leaves_the_features_as_they_were(name):
    network = build_of_own_networks(name)
    features = network.stem(torch.randn(2, 3, 16, 16)).detach()
    for block in network.blocks:
        before = features.clone()
        skipped = block.join(torch.zeros(()), block.shortcut(features))
        assert torch.equal(features, before)
        assert skipped.shape == block(features).shape
        assert not skipped.requires_grad or name == "preact_resnet"
        features = skipped.detach()


@pytest.mark.parametrize("name", OWN_OWN_NETWORKS)
def test_channels_last_gives_the_same_logits_of_own_networks(name):
    network, images = build_of_own_networks(name).eval(), torch.randn(2, 3, 32, 32)
    expected = network(images)
    network.to(memory_format=torch.channels_last)
    actual = network(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


CONVS = [f"blocks.{group}.conv{layer}.weight" for group in range(3) for layer in (1, 2)]


def build_of_speednet(in_channels=3, num_classes=10, **fields):
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
    assert (
        num_parameters(build_of_speednet()) == whitening + convs + norm_biases + head == 1_971_640
    )


def test_parameters_by_hand_of_grey_images_and_other_widths():
    network = build_of_speednet(in_channels=1, num_classes=7, width1=5, width2=6, width3=4)
    whitening = 8 * 4 + 8
    convs = 9 * (8 * 5 + 5 * 5 + 5 * 6 + 6 * 6 + 6 * 4 + 4 * 4)
    assert num_parameters(network) == whitening + convs + 2 * (5 + 6 + 4) + 4 * 7


def test_logits_are_those_of_plain_functions_with_the_same_weights():
    network = build_of_speednet(
        width1=8, width2=10, width3=12, norm_eps=1e-3, logit_scale=0.25
    ).double()
    for bias in (p for name, p in network.named_parameters() if name.endswith("bias")):
        torch.nn.init.normal_(bias)
    images = torch.randn(5, 3, 32, 32, dtype=torch.float64)
    expected = logits_by_hand(dict(network.named_parameters()), images, eps=1e-3, scale=0.25)
    torch.testing.assert_close(network(images), expected, rtol=1e-10, atol=1e-10)


def test_evaluation_is_by_running_statistics_of_the_given_momentum():
    network, images = (
        build_of_speednet(width1=8, width2=8, width3=8, norm_momentum=0.25),
        torch.rand(4, 3, 9, 9),
    )
    norm = network.blocks[0].norm1
    seen = F.max_pool2d(network.blocks[0].conv1(network.stem(images)), 2)
    network(images)
    mean = seen.mean(dim=(0, 2, 3))
    torch.testing.assert_close(norm.running_mean, 0.25 * mean, rtol=1e-4, atol=1e-6)


def test_convolutions_begin_as_the_identity_on_the_channels_they_have():
    network, features = build_of_speednet(), torch.randn(2, 24, 7, 7)
    first = network.blocks[0].conv1(features)
    torch.testing.assert_close(first[:, :24], features, rtol=1e-5, atol=1e-5)
    assert first[:, 24:].std() > 0.1
    features = torch.randn(2, 64, 7, 7)
    torch.testing.assert_close(network.blocks[0].conv2(features), features, rtol=1e-5, atol=1e-5)


def test_fewer_filters_than_channels_begin_as_the_first_channels():
    conv, features = build_of_speednet(width1=10).blocks[0].conv1, torch.randn(2, 24, 5, 5)
    torch.testing.assert_close(conv(features), features[:, :10], rtol=1e-5, atol=1e-5)


def test_norms_train_their_bias_and_not_their_scale():
    network = build_of_speednet()
    names = {name for name, _ in network.named_parameters() if "norm" in name}
    assert names == {f"blocks.{g}.norm{n}.bias" for g in range(3) for n in (1, 2)}
    assert all((network.blocks[g].norm1.weight == 1).all() for g in range(3))


@pytest.mark.parametrize("size", [(2, 2), (3, 8), (8, 8), (33, 20)])
def test_images_of_any_size_are_taken(size):
    network = build_of_speednet(in_channels=2, width1=8, width2=8, width3=8)
    assert network(torch.randn(4, 2, *size)).shape == (4, 10)


@pytest.mark.parametrize("frozen", [True, False])
def test_muon_orthogonalises_the_six_convolutions_of_the_groups(frozen):
    network = Whitening(frozen=frozen).change_model(build_of_speednet(), num_classes=10, seed=0)
    hidden = hidden_weights(network)
    assert [name for name, p in network.named_parameters() if id(p) in hidden] == CONVS


def test_records_rates_reach_their_weights():
    network = Whitening(frozen=True).change_model(build_of_speednet(), num_classes=10, seed=0)
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
