import pytest
import timm
import torch
import torchvision
from torch import nn

from tune_speed.components.speedups.modules.probes import active_dropouts
from tune_speed.components.speedups.network import DropoutRemoval
from tune_speed.core.errors import ConfigError


def every_kind():
    """Returns a network without batch norm that drops in many ways."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.Dropout2d(0.3),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(8 * 36, 16),
        nn.AlphaDropout(0.2),
        nn.TransformerEncoderLayer(16, 2, dropout=0.4),
        torchvision.ops.StochasticDepth(0.5, "row"),
    )


def without_dropout(model, **fields):
    config = DropoutRemoval(**fields)
    config.check_model(model)
    return config.change_model(model, num_classes=10, seed=0)


def is_noisy(model, size=8):
    model.train()
    images = torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(0))
    return not torch.equal(model(images), model(images))


def test_two_passes_in_training_agree_bit_for_bit_once_dropout_is_removed():
    assert is_noisy(every_kind())
    model = without_dropout(every_kind(), include_stochastic_depth=True)
    assert not is_noisy(model)
    assert active_dropouts(model, stochastic_depth=True) == []


def test_stochastic_depth_stays_unless_asked_for():
    model = without_dropout(every_kind())
    left = active_dropouts(model, stochastic_depth=True)
    assert [type(module).__name__ for module, _ in left] == ["StochasticDepth"]
    assert active_dropouts(model, stochastic_depth=False) == []
    assert is_noisy(model)


def group_norm(num_channels, **_):
    return nn.GroupNorm(1, num_channels)


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: torchvision.models.squeezenet1_1(), 64),
        (lambda: timm.create_model("test_vit", drop_rate=0.2, attn_drop_rate=0.1), 160),
        # Its forward passes `drop_rate` on to a function: no module drops.
        (lambda: timm.create_model("test_resnet", drop_rate=0.2, norm_layer=group_norm), 64),
    ],
)
def test_networks_of_the_libraries_lose_their_noise(make, size):
    torch.manual_seed(0)
    assert is_noisy(make(), size)
    assert not is_noisy(without_dropout(make()), size)


def test_rates_that_a_forward_passes_on_are_found_in_densenets():
    with torch.device("meta"):
        model = without_dropout(torchvision.models.densenet121(drop_rate=0.2))
    assert model.features.denseblock1.denselayer1.drop_rate == 0.0


@pytest.mark.parametrize(
    ("name", "num_dropouts", "num_paths"),
    # EfficientNet-B0: one before the classifier, and all of its 16 blocks but the first.
    [("efficientnet_b0", 1, 15), ("mobilenet_v2", 1, 0), ("vgg11", 2, 0), ("alexnet", 2, 0)],
)
def test_torchvisions_defaults_are_found(name, num_dropouts, num_paths):
    with torch.device("meta"):
        model = torchvision.models.get_model(name)
    assert len(active_dropouts(model, stochastic_depth=False)) == num_dropouts
    assert len(active_dropouts(model, stochastic_depth=True)) == num_dropouts + num_paths


def test_a_network_that_drops_nothing_is_refused():
    with torch.device("meta"):
        model = timm.create_model("resnet18")
    with pytest.raises(ConfigError, match="must have a network with dropout to switch off"):
        DropoutRemoval().check_model(model)
