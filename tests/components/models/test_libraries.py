import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from helpers.data.files import go_offline, publish
from pydantic import ValidationError
from torch import nn
from torchvision.ops import StochasticDepth

from tune_speed.components.models import MODELS
from tune_speed.components.models.libraries import Timm, TorchVision
from tune_speed.components.models.published import UNTRAINED, Hybrid
from tune_speed.core.config import Component
from tune_speed.core.errors import ConfigError, DataError

RGB = {"in_channels": 3, "num_classes": 10, "image_size": 32}


def build_on_meta(image_size=32, **fields):
    with torch.device("meta"):
        return Timm(**fields).network(in_channels=3, num_classes=10, image_size=image_size)


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("resnet18", 11_181_642),
        ("resnet50", 23_528_522),
        ("densenet121", 6_964_106),
        ("efficientnet_b0", 4_020_358),
        ("mobilenetv2_100", 2_236_682),
        ("mobilenetv3_small_050", 578_474),
    ],
)
def test_timm_models_have_the_published_sizes(name, num_parameters):
    network = build_on_meta(name=name)
    assert sum(p.numel() for p in network.parameters()) == num_parameters


def test_position_embeddings_follow_the_image_size():
    # 85,806,346 at 224 pixels: 196 + 1 positions of 768 values. At 32 pixels: 4 + 1.
    count = sum(p.numel() for p in build_on_meta(name="vit_base_patch16_224").parameters())
    assert count == 85_806_346 - 192 * 768
    full = build_on_meta(name="vit_base_patch16_224", image_size=224)
    assert sum(p.numel() for p in full.parameters()) == 85_806_346


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("resnet18", 4),
        ("resnet10t", 4),
        ("resnet18d", 4),
        ("resnetblur18", 4),
        ("resnetrs50", 4),
        ("resnetv2_18", 4),
        ("resnetv2_50x1_bit", 4),
        ("tf_efficientnet_b0", 2),
        ("mobilenetv2_100", 2),
        ("mobilenetv3_small_050", 2),
        ("regnety_002", 2),
    ],
)
def test_cifar_stem_keeps_the_resolution_that_the_native_one_loses(name, factor):
    images = torch.empty(1, 3, 64, 64, device="meta")
    cifar, native = (
        build_on_meta(name=name, stem=stem).eval().forward_features(images)
        for stem in ("cifar", "native")
    )
    assert cifar.shape[1] == native.shape[1]
    assert cifar.shape[2:] == tuple(factor * size for size in native.shape[2:])


def test_cifar_stem_of_resnet50_is_smaller_by_its_first_kernel():
    network = build_on_meta(name="resnet50", stem="cifar")
    expected = 23_528_522 - 64 * 3 * (7 * 7 - 3 * 3)
    assert sum(p.numel() for p in network.parameters()) == expected
    assert (network.conv1.kernel_size, network.conv1.stride) == ((3, 3), (1, 1))
    assert isinstance(network.maxpool, nn.Identity)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vgg11", "convnext_tiny"])
def test_cifar_stem_is_refused_where_there_is_none(name):
    with pytest.raises(ConfigError, match=f"must be native for {name}"):
        Timm(name=name, stem="cifar").check(**RGB)


def test_drop_settings_reach_the_network():
    network = build_on_meta(name="efficientnet_b0", drop_rate=0.3, drop_path_rate=0.2)
    rates = [m.drop_prob for m in network.modules() if type(m).__name__ == "DropPath"]
    assert network.drop_rate == 0.3
    assert 0.1 < max(rates) <= 0.2


@pytest.mark.parametrize("name", ["vgg11", "densenet121"])
def test_drop_path_is_refused_where_there_are_no_paths(name):
    with pytest.raises(ConfigError, match="drop_path_rate: must be left out") as caught:
        Timm(name=name, drop_path_rate=0.1).check(**RGB)
    assert caught.value.problems[0].given == "0.1"


def test_patch_size_is_refused_where_there_are_no_patches():
    with pytest.raises(ConfigError, match=r"timm\.patch_size:"):
        Timm(name="resnet18", patch_size=4).check(**RGB)


def test_images_that_are_too_small_are_refused_before_training():
    with pytest.raises(ConfigError, match="3 x 8 x 8"):
        Timm(name="vit_tiny_patch16_224").check(in_channels=3, num_classes=10, image_size=8)


def test_encoders_without_classifier_are_refused():
    with pytest.raises(ConfigError, match="instead of logits"):
        Timm(name="qwen3_vit_88m_enc").check(in_channels=3, num_classes=10, image_size=384)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "resnet_18"}, "did you mean `resnet18`"),
        ({"name": "hf-hub:someone/model"}, "must be the name of a model of timm"),
        ({"name": "resnet10t.nothing"}, "did you mean `resnet10t.c3_in1k`"),
        ({"name": "resnet18", "pretrained": True, "weights_file": "w.pt"}, "not be given both"),
        ({"name": "vgg11", "drop_rate": 1.0}, "less than 1"),
        ({"name": "botnet50ts_256", "pretrained": True}, "timm has no weights"),
    ],
)
def test_mistakes_are_refused_at_load(fields, message):
    with pytest.raises(ValidationError, match=message):
        Timm(**fields)


def test_missing_published_weights_are_a_data_error(monkeypatch, tmp_path):
    go_offline(monkeypatch, tmp_path)
    with pytest.raises(DataError, match="`pretrained: false`"):
        Timm(name="test_resnet", pretrained=True).build(**RGB)


def test_published_weights_are_loaded_and_the_classifier_starts_fresh(monkeypatch, tmp_path):
    published = Timm(name="test_resnet").build(in_channels=3, num_classes=1000, image_size=160)
    publish(published, tmp_path, name="test_resnet.r160_in1k")
    go_offline(monkeypatch, tmp_path)
    network = Timm(name="test_resnet", pretrained=True).build(
        in_channels=1, num_classes=10, image_size=32
    )
    assert torch.equal(network.layer4[0].conv2.weight, published.layer4[0].conv2.weight)
    assert network.fc.weight.shape[0] == 10
    first, whole = network.conv1[0].weight, published.conv1[0].weight.sum(dim=1, keepdim=True)
    torch.testing.assert_close(first, whole)


RGB_TORCHVISION_MODEL = {"in_channels": 3, "num_classes": 10, "image_size": 32}


def build_on_meta_of_torchvision_model(image_size=64, in_channels=3, **fields):
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
    network = build_on_meta_of_torchvision_model(name=name)
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
def test_cifar_stem_keeps_the_resolution_that_the_native_one_loses_of_torchvision_model(
    name, factor
):
    sizes = []
    for stem in ("cifar", "native"):
        network = build_on_meta_of_torchvision_model(name=name, stem=stem).eval()
        last = [m for m in network.modules() if isinstance(m, nn.Conv2d)][-1]
        last.register_forward_hook(lambda _, __, output: sizes.append(output.shape[-1]))
        network(torch.empty(1, 3, 64, 64, device="meta"))
    assert sizes[0] == factor * sizes[1]


@pytest.mark.parametrize("name", ["vgg11", "convnext_tiny", "swin_t"])
def test_cifar_stem_is_refused_where_there_is_none_of_torchvision_model(name):
    with pytest.raises(ConfigError, match=f"must be native for {name}"):
        TorchVision(name=name, stem="cifar").check(**RGB_TORCHVISION_MODEL)


def test_position_embeddings_follow_the_image_size_of_torchvision_model():
    network = build_on_meta_of_torchvision_model(name="vit_b_16", image_size=32)
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
    network = build_on_meta_of_torchvision_model(name=name, drop_rate=0.35)
    assert 0.35 in [m.p for m in network.modules() if isinstance(m, nn.Dropout)]


def test_drop_rate_reaches_densenet():
    network = build_on_meta_of_torchvision_model(name="densenet121", drop_rate=0.35)
    assert network.features.denseblock1.denselayer1.drop_rate == 0.35


@pytest.mark.parametrize("name", ["convnext_tiny", "efficientnet_b0"])
def test_drop_path_rate_reaches_the_network(name):
    network = build_on_meta_of_torchvision_model(name=name, drop_path_rate=0.45)
    rates = [m.p for m in network.modules() if isinstance(m, StochasticDepth)]
    assert 0.4 < max(rates) <= 0.45


def test_images_that_are_too_small_are_refused_before_training_of_torchvision_model():
    with pytest.raises(ConfigError, match="3 x 32 x 32"):
        TorchVision(name="alexnet").check(**RGB_TORCHVISION_MODEL)
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
def test_mistakes_are_refused_at_load_of_torchvision_model(fields, message):
    with pytest.raises(ValidationError, match=message):
        TorchVision(**fields)


def test_unreachable_published_weights_are_a_data_error(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(DataError, match="torchvision's squeezenet1_1") as caught:
        TorchVision(name="squeezenet1_1", pretrained=True).build(**RGB_TORCHVISION_MODEL)
    assert isinstance(caught.value.__cause__, OSError)


def test_published_weights_are_loaded_and_the_classifier_starts_fresh_of_torchvision_model(
    monkeypatch, tmp_path
):
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


NATIVE = {"stem": "native"}


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
def test_drop_path_rate_reaches_the_network_of_published(name):
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


def test_a_tag_of_torchvision_picks_the_weights():
    entry = torchvision.models.ResNet50_Weights.IMAGENET1K_V1
    model = TorchVision(name="resnet50.IMAGENET1K_V1", pretrained=True)
    network = model.network(in_channels=3, num_classes=4, image_size=32)
    assert isinstance(network, torchvision.models.ResNet)
    assert model._published_weights() is entry is not entry.__class__.DEFAULT
    assert model.published_normalisation().source == f"torchvision's {entry}"
    with pytest.raises(ValidationError, match="did you mean `resnet50"):
        TorchVision(name="resnet50.IMAGENET1K_V3")
