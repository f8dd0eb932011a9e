import math

import pytest
import torch
from torch import nn

from tune_speed.components.models.cifar import PlainCNN


def build(**fields):
    torch.manual_seed(0)
    return PlainCNN(**fields).build(in_channels=3, num_classes=10, image_size=32)


def test_plain_cnn_has_the_size_of_the_all_convolutional_net():
    # Nine convolutions with biases: 3x3 but the last two, of 96, 192 and 10 channels.
    pairs = [(3, 96), (96, 96), (96, 96), (96, 192), (192, 192), (192, 192), (192, 192)]
    expected = sum(9 * before * after + after for before, after in pairs)
    expected += 192 * 192 + 192 + 192 * 10 + 10
    assert sum(p.numel() for p in build().parameters()) == expected == 1_369_738


def test_it_shrinks_images_by_strides_alone():
    network = build()
    kinds = {type(module) for module in network.modules()}
    assert not kinds & {nn.MaxPool2d, nn.AvgPool2d, nn.Linear, nn.AdaptiveAvgPool2d}
    strides = [m.stride[0] for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert strides == [1, 1, 2, 1, 1, 2, 1, 1, 1]
    assert network.blocks(network.stem(torch.randn(1, 3, 32, 32))).shape == (1, 192, 8, 8)


def test_batch_norm_takes_the_place_of_the_biases_but_the_last():
    network = build(batch_norm=True)
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    biased = [m for m in network.modules() if isinstance(m, nn.Conv2d) and m.bias is not None]
    assert len(norms) == 8
    assert biased == [network.classifier]


def test_dropouts_stand_before_the_net_and_after_its_strides():
    network = build(input_dropout=0.1, dropout=0.3)
    rates = [m.p for m in network.modules() if isinstance(m, nn.Dropout)]
    assert rates == [0.1, 0.3, 0.3]


def test_features_keep_their_scale_over_the_layers():
    network = build(input_dropout=0.0, dropout=0.0)
    weight = network.blocks[4][0].weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (9 * 192)), rel=0.02)
    logits = network(torch.randn(16, 3, 32, 32))
    assert 0.05 < logits.std().item() < 5
