import pytest
import torch
from torch import nn

from tune_speed.components.models.networks.stem import STEMS, first_conv, set_in_channels


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 5, stride=2, padding=1)), nn.Flatten())


def test_grey_images_give_what_they_gave_as_three_equal_channels():
    grey = torch.randn(2, 1, 9, 9)
    expected = network()(grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(set_in_channels(network(), 1)(grey), expected)


@pytest.mark.parametrize("in_channels", [2, 6])
def test_other_channel_counts_keep_the_scale(in_channels):
    path, conv = first_conv(set_in_channels(network(), in_channels))
    old = network()[0][0].weight
    assert path == "0.0"
    assert conv.in_channels == in_channels
    torch.testing.assert_close(conv.weight[:, 0], old[:, 0] * 3 / in_channels)
    torch.testing.assert_close(conv.weight[:, -1], old[:, (in_channels - 1) % 3] * 3 / in_channels)


def test_three_channels_leave_the_network_as_it_is():
    given = network()
    conv = given[0][0]
    assert set_in_channels(given, 3)[0][0] is conv


@pytest.mark.parametrize("kind", sorted(STEMS))
def test_every_class_with_a_cifar_stem_exists(kind):
    module, name = kind.rsplit(".", 1)
    assert issubclass(getattr(__import__(module, fromlist=[name]), name), nn.Module)
