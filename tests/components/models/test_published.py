import pytest
import timm
import torch
import torch.nn.functional as F
from helpers.data.files import go_offline, publish
from pydantic import ValidationError
from torch import nn

from tune_speed.components.models import MODELS
from tune_speed.components.models.published import UNTRAINED, Hybrid
from tune_speed.core.config import Component
from tune_speed.core.errors import ConfigError

NATIVE = {"stem": "native"}
"""The first layers as published."""


def on_meta(name, image_size, **fields):
    with torch.device("meta"):
        return MODELS[name](**fields).network(in_channels=3, num_classes=10, image_size=image_size)


def size(network):
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("name", "fields", "num_parameters"),
    [
        ("resnet18", NATIVE, 11_181_642),
        ("resnet50", NATIVE, 23_528_522),
        ("densenet121", NATIVE, 6_964_106),
        ("efficientnet_b0", NATIVE, 4_020_358),
        ("mobilenet", NATIVE, 2_236_682),
        ("mobilenet", {"variant": "v3_small_050", **NATIVE}, 578_474),
        ("squeezenet", {"version": "1_0", **NATIVE}, 740_554),
        ("squeezenet", {"version": "1_1", **NATIVE}, 727_626),
        ("alexnet", NATIVE, 61_100_840 - 990 * 4097),
        ("vgg16_bn", {}, 138_365_992 - 990 * 4097),
        ("vgg19", {}, 143_667_240 - 990 * 4097),
        ("vgg19_bn", {}, 143_678_248 - 990 * 4097),
        ("vit", {"size": "base", "patch_size": 16}, 85_806_346),
        ("vit", {"size": "tiny", "patch_size": 16}, 5_526_346),
        ("hybrid", {"patch_size": 8}, 6_146_634),
    ],
)
def test_models_have_the_published_sizes(name, fields, num_parameters):
    assert size(on_meta(name, 224, **fields)) == num_parameters


def test_base_vit_at_32_pixels_has_64_patches_of_4_pixels():
    # As published, but for 16 * 16 - 4 * 4 pixels of 3 channels less a patch, and fewer positions.
    fewer = 768 * (3 * (16 * 16 - 4 * 4) + 196 - 64)
    assert size(on_meta("vit", 32, size="base", patch_size=4)) == 85_806_346 - fewer


@pytest.mark.parametrize(
    ("name", "image_size"),
    [
        ("alexnet", 63),
        ("densenet121", 32),
        ("efficientnet_b0", 32),
        ("mobilenet", 32),
        ("resnet18", 32),
        ("resnet50", 32),
        ("squeezenet", 32),
    ],
)
def test_cifar_stem_is_the_default_and_the_native_one_loses_resolution(name, image_size):
    assert MODELS[name]().stem == "cifar"
    cells = {}
    for stem in ("cifar", "native"):
        network = on_meta(name, image_size, stem=stem).eval()
        last = [m for m in network.modules() if isinstance(m, nn.Conv2d) and m.stride == (1, 1)][-1]
        last.register_forward_hook(lambda _, __, out, stem=stem: cells.update({stem: out[0, 0]}))
        assert network(torch.empty(1, 3, image_size, image_size, device="meta")).shape == (1, 10)
    assert cells["cifar"].numel() >= 4 * cells["native"].numel()


@pytest.mark.parametrize(
    ("name", "image_size"), [("alexnet", 32), ("alexnet", 62), ("squeezenet", 8)]
)
def test_images_too_small_for_the_native_stem_are_refused_with_the_way_out(name, image_size):
    with pytest.raises(ConfigError, match=r"images of 3 x \d+ x \d+ .*`stem: cifar`"):
        MODELS[name](stem="native").check(in_channels=3, num_classes=10, image_size=image_size)
    MODELS[name]().check(in_channels=3, num_classes=10, image_size=image_size)


def test_ways_out_are_those_that_the_model_has():
    with pytest.raises(ConfigError, match="Try larger images, `resize_to` or another model"):
        MODELS["vgg19"]().check(in_channels=3, num_classes=10, image_size=16)


def test_pixels_beyond_whole_patches_are_not_seen():
    network = MODELS["vit"]().build(in_channels=3, num_classes=10, image_size=10).eval()
    images = torch.randn(1, 3, 10, 10)
    expected = network(images)
    images[..., 8:, :] = images[..., 8:] = 9.0
    assert torch.equal(network(images), expected)


@pytest.mark.parametrize(
    ("name", "drop_rate"),
    [("efficientnet_b0", 0.2), ("mobilenet", 0.0), ("resnet18", 0.0)],
)
def test_timm_is_told_the_drop_rate(name, drop_rate):
    assert on_meta(name, 32).drop_rate == drop_rate
    assert on_meta(name, 32, drop_rate=0.4).drop_rate == 0.4


@pytest.mark.parametrize("name", ["densenet121", "hybrid", "vit"])
def test_others_drop_features_before_the_classifier(name):
    assert on_meta(name, 32).head_drop.p == 0.0
    assert on_meta(name, 32, drop_rate=0.4).head_drop.p == 0.4


@pytest.mark.parametrize("name", ["alexnet", "squeezenet", "vgg16_bn", "vgg19", "vgg19_bn"])
def test_torchvision_is_told_the_drop_rate_of_the_paper(name):
    for fields, expected in (({}, 0.5), ({"drop_rate": 0.25}, 0.25)):
        network = on_meta(name, 32, **fields)
        assert {m.p for m in network.modules() if isinstance(m, nn.Dropout)} == {expected}


@pytest.mark.parametrize(
    "name", ["efficientnet_b0", "hybrid", "mobilenet", "resnet18", "resnet50", "vit"]
)
def test_drop_path_rate_reaches_the_network(name):
    network = on_meta(name, 32, drop_path_rate=0.3)
    rates = [m.drop_prob for m in network.modules() if type(m).__name__ == "DropPath"]
    assert 0.25 < max(rates) < 0.3001


@pytest.mark.parametrize("variant", Hybrid.model_fields["variant"].annotation.__args__)
def test_hybrid_knows_which_variants_have_published_weights(variant):
    assert timm.is_model_pretrained(f"vit_{variant}_224") == (variant not in UNTRAINED)


def test_published_weights_that_do_not_exist_are_refused_at_load():
    with pytest.raises(ValidationError, match="timm has no weights for small_resnet50d_s16"):
        Hybrid(variant="small_resnet50d_s16", pretrained=True)


def test_hybrid_with_a_whole_resnet_takes_cifar_images():
    Hybrid(variant="small_resnet50d_s16").check(in_channels=3, num_classes=10, image_size=32)


def test_published_vit_is_resampled_to_small_patches_and_fewer_positions(monkeypatch, tmp_path):
    shape = {"in_channels": 3, "image_size": 224, "num_classes": 1000}
    published = MODELS["vit"](patch_size=16).build(**shape)
    publish(published, tmp_path, name="vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    go_offline(monkeypatch, tmp_path)
    config = MODELS["vit"](pretrained=True)
    network = config.build(in_channels=3, image_size=32, num_classes=10)
    last, published_last = network.blocks[-1].mlp.fc2, published.blocks[-1].mlp.fc2
    assert torch.equal(last.weight, published_last.weight)
    assert network.patch_embed.proj.weight.shape == (192, 3, 4, 4)
    assert network.pos_embed.shape == (1, 1 + 64, 192)
    assert network.head.weight.shape[0] == 10


def test_network_that_resizes_sees_what_a_larger_image_would_show():
    torch.manual_seed(0)
    shape = {"in_channels": 3, "num_classes": 10}
    small = MODELS["vit"](resize_to=16).build(image_size=8, **shape).eval()
    large = MODELS["vit"]().build(image_size=16, **shape).eval()
    large.load_state_dict(small.state_dict())
    images = torch.randn(2, 3, 8, 8)
    enlarged = F.interpolate(images, size=(16, 16), mode="bicubic")
    torch.testing.assert_close(small(images), large(enlarged))


@pytest.mark.parametrize("name", ["alexnet", "efficientnet_b0", "hybrid", "squeezenet"])
def test_small_images_can_be_resized_for_the_layers_as_published(name):
    fields = {"stem": "native"} if "stem" in MODELS[name].model_fields else {"patch_size": 4}
    config = MODELS[name](resize_to=64, **fields)
    config.check(in_channels=3, num_classes=10, image_size=32)


def test_short_names_stand_for_models_with_their_defaults():
    component = Component(MODELS)
    name, fields = component.split("vgg19")
    assert MODELS[name](**fields) == MODELS["vgg19"]()
