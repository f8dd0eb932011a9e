import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tune_speed.components.models.cifar import PreActResNet, ResNet, ResNet20

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
