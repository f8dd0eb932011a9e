import pytest
import torch
import torchvision
from pydantic import ValidationError
from torch import nn
from torchvision.ops import StochasticDepth

from tune_speed.components.models.libraries import TorchVision
from tune_speed.core.errors import ConfigError, DataError

RGB = {"in_channels": 3, "num_classes": 10, "image_size": 32}


def build_on_meta(image_size=64, in_channels=3, **fields):
    with torch.device("meta"):
        return TorchVision(**fields).network(
            in_channels=in_channels, num_classes=10, image_size=image_size
        )


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("resnet18", 11_181_642),
        ("resnet50", 23_528_522),
        ("densenet121", 6_964_106),
        ("efficientnet_b0", 4_020_358),
        ("mobilenet_v2", 2_236_682),
        ("squeezenet1_0", 740_554),
        ("squeezenet1_1", 727_626),
    ],
)
def test_torchvision_models_have_the_published_sizes(name, num_parameters):
    network = build_on_meta(name=name)
    assert sum(p.numel() for p in network.parameters()) == num_parameters


@pytest.mark.parametrize(
    "name",
    ["alexnet", "googlenet", "regnet_x_400mf", "squeezenet1_1", "swin_t", "vgg11", "vit_b_32"],
)
def test_families_take_one_channel(name):
    TorchVision(name=name).check(in_channels=1, num_classes=7, image_size=64)


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("resnet18", 4),
        ("wide_resnet50_2", 4),
        ("densenet121", 4),
        ("shufflenet_v2_x0_5", 4),
        ("efficientnet_b0", 2),
        ("mnasnet0_5", 2),
        ("mobilenet_v2", 2),
        ("mobilenet_v3_small", 2),
    ],
)
def test_cifar_stem_keeps_the_resolution_that_the_native_one_loses(name, factor):
    sizes = []
    for stem in ("cifar", "native"):
        network = build_on_meta(name=name, stem=stem).eval()
        last = [m for m in network.modules() if isinstance(m, nn.Conv2d)][-1]
        last.register_forward_hook(lambda _, __, output: sizes.append(output.shape[-1]))
        network(torch.empty(1, 3, 64, 64, device="meta"))
    assert sizes[0] == factor * sizes[1]


@pytest.mark.parametrize("name", ["vgg11", "convnext_tiny", "swin_t"])
def test_cifar_stem_is_refused_where_there_is_none(name):
    with pytest.raises(ConfigError, match=f"must be native for {name}"):
        TorchVision(name=name, stem="cifar").check(**RGB)


def test_position_embeddings_follow_the_image_size():
    network = build_on_meta(name="vit_b_16", image_size=32)
    assert network.encoder.pos_embedding.shape == (1, 4 + 1, 768)


@pytest.mark.parametrize(
    "name",
    [
        "alexnet",
        "efficientnet_b0",
        "mnasnet0_5",
        "mobilenet_v3_small",
        "swin_t",
        "vgg11",
        "vit_b_32",
    ],
)
def test_drop_rate_reaches_the_network(name):
    network = build_on_meta(name=name, drop_rate=0.35)
    assert 0.35 in [m.p for m in network.modules() if isinstance(m, nn.Dropout)]


def test_drop_rate_reaches_densenet():
    network = build_on_meta(name="densenet121", drop_rate=0.35)
    assert network.features.denseblock1.denselayer1.drop_rate == 0.35


@pytest.mark.parametrize("name", ["convnext_tiny", "efficientnet_b0"])
def test_drop_path_rate_reaches_the_network(name):
    network = build_on_meta(name=name, drop_path_rate=0.45)
    rates = [m.p for m in network.modules() if isinstance(m, StochasticDepth)]
    assert 0.4 < max(rates) <= 0.45


def test_images_that_are_too_small_are_refused_before_training():
    with pytest.raises(ConfigError, match="3 x 32 x 32"):
        TorchVision(name="alexnet").check(**RGB)
    TorchVision(name="alexnet").check(in_channels=3, num_classes=10, image_size=64)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "resnet19"}, "did you mean `resnet18`"),
        ({"name": "fcn_resnet50"}, "must be the name of a classifier"),
        ({"name": "resnet18", "pretrained": True, "weights_file": "w.pt"}, "not be given both"),
        ({"name": "resnet18", "drop_rate": 0.1}, "`drop_rate` must be left out"),
        ({"name": "convnext_tiny", "drop_rate": 0.1}, "`drop_rate` must be left out"),
        (
            {"name": "mobilenet_v3_small", "drop_path_rate": 0.1},
            "`drop_path_rate` must be left out",
        ),
    ],
)
def test_mistakes_are_refused_at_load(fields, message):
    with pytest.raises(ValidationError, match=message):
        TorchVision(**fields)


def test_unreachable_published_weights_are_a_data_error(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(DataError, match="torchvision's squeezenet1_1") as caught:
        TorchVision(name="squeezenet1_1", pretrained=True).build(**RGB)
    assert isinstance(caught.value.__cause__, OSError)


def test_published_weights_are_loaded_and_the_classifier_starts_fresh(monkeypatch, tmp_path):
    published = torchvision.models.squeezenet1_1()
    file = torchvision.models.SqueezeNet1_1_Weights.DEFAULT.url.rsplit("/", 1)[1]
    (tmp_path / "hub/checkpoints").mkdir(parents=True)
    torch.save(published.state_dict(), tmp_path / "hub/checkpoints" / file)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    network = TorchVision(name="squeezenet1_1", pretrained=True).build(
        in_channels=1, num_classes=10, image_size=64
    )
    assert torch.equal(network.features[3].squeeze.weight, published.features[3].squeeze.weight)
    assert network.classifier[1].weight.shape[0] == 10
    first = published.features[0].weight.sum(dim=1, keepdim=True)
    torch.testing.assert_close(network.features[0].weight, first)
