import math

import pytest
import torch
from torch import nn

from tune_speed.components.models.cifar import PreActResNet
from tune_speed.components.models.networks.cifar import PreActBlock


def build(**fields):
    torch.manual_seed(0)
    config = PreActResNet(**fields)
    return config.build(in_channels=3, num_classes=10, image_size=32)


def transition(seed=0):
    torch.manual_seed(seed)
    return PreActBlock(4, 8, stride=2, is_activated=False)


def test_preact_resnet_has_as_many_parameters_as_resnet20():
    network = build()
    assert sum(p.numel() for p in network.parameters()) == 269_722
    kinds = [type(module) for module in network.modules()]
    assert (kinds.count(nn.Conv2d), kinds.count(nn.Linear)) == (19, 1)


def test_blocks_that_keep_the_shape_are_the_identity_when_their_branch_is_zero():
    keeping = [block for block in build().blocks if not block.changes_shape]
    assert len(keeping) == 7
    for block in keeping:
        nn.init.zeros_(block.conv2.weight)
        features = torch.randn(2, block.conv1.in_channels, 6, 6)
        assert torch.equal(block(features), features)


def test_gradient_takes_the_shortcut_undiminished():
    block = build().blocks[4]
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
    network = build().eval()
    features = network.stem(torch.randn(2, 3, 8, 8))
    assert (features >= 0).all() and (features == 0).any()
    assert torch.equal(network.blocks[0].activation(features), features)
    last = network.blocks(features)
    assert (last < 0).any()
    pooled = network.last_norm(last).relu().mean(dim=(2, 3))
    assert torch.equal(network.head(last), network.classifier(pooled))


@pytest.mark.parametrize("stage", [0, 3, 6])
def test_convolutions_are_drawn_for_relu(stage):
    weight = build(depth=26).blocks[stage + 1].conv2.weight
    expected = math.sqrt(2 / (9 * weight.shape[0]))
    assert weight.std().item() == pytest.approx(expected, rel=0.03)
