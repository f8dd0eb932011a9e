"""What our own networks offer to techniques that take them apart."""

import pytest
import torch

from tune_speed.components.models import MODELS

OWN = ["resnet20", "resnet", "preact_resnet", "plain_cnn", "speednet"]
RESIDUAL = ["resnet20", "preact_resnet"]


def build(name):
    torch.manual_seed(0)
    return MODELS[name]().build(in_channels=3, num_classes=10, image_size=32)


@pytest.mark.parametrize("name", OWN)
def test_network_is_stem_then_blocks_then_head(name):
    network, images = build(name).eval(), torch.randn(2, 3, 16, 16)
    features = network.stem(images)
    for block in network.blocks:
        features = block(features)
    assert torch.equal(network.head(features), network(images))


@pytest.mark.parametrize("name", RESIDUAL)
def test_block_is_its_branch_joined_with_its_shortcut(name):
    network = build(name).eval()
    features = network.stem(torch.randn(2, 3, 16, 16))
    for block in network.blocks:
        joined = block.join(block.branch(features), block.shortcut(features))
        assert torch.equal(block(features), joined)
        features = joined


@pytest.mark.parametrize("name", RESIDUAL)
def test_skipping_a_block_needs_no_branch_and_leaves_the_features_as_they_were(name):
    network = build(name)
    features = network.stem(torch.randn(2, 3, 16, 16)).detach()
    for block in network.blocks:
        before = features.clone()
        skipped = block.join(torch.zeros(()), block.shortcut(features))
        assert torch.equal(features, before)
        assert skipped.shape == block(features).shape
        assert not skipped.requires_grad or name == "preact_resnet"
        features = skipped.detach()


@pytest.mark.parametrize("name", OWN)
def test_channels_last_gives_the_same_logits(name):
    network, images = build(name).eval(), torch.randn(2, 3, 32, 32)
    expected = network(images)
    network.to(memory_format=torch.channels_last)
    actual = network(images.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
