import pytest
import timm
import torch
import torchvision

from tune_speed.components.models import MODELS
from tune_speed.components.models.libraries import Timm, TorchVision

LITE0 = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def statistics_of(model, in_channels=3):
    found = model.normalisation(in_channels=in_channels)
    return found and {"mean": found.mean, "std": found.std}


@pytest.mark.parametrize("name", ["resnet18", "tf_efficientnet_lite0", "test_vit.r160_in1k"])
def test_published_weights_of_timm_have_the_statistics_that_timm_resolves(name):
    resolved = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    found = statistics_of(Timm(name=name, pretrained=True))
    assert found == {"mean": resolved["mean"], "std": resolved["std"]}


def test_statistics_are_those_of_the_named_tag():
    tags = ("resnet18.a1_in1k", "vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    found = [statistics_of(Timm(name=tag, pretrained=True)) for tag in tags]
    assert found == [IMAGENET, LITE0]


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1", "vit_b_16"])
def test_published_weights_of_torchvision_make_images_as_its_own_transforms_do(name):
    found = TorchVision(name=name, pretrained=True).normalisation(in_channels=3)
    transforms = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    seen = transforms(torch.full((3, 300, 300), 51, dtype=torch.uint8))[:, 0, 0]
    ours = (0.2 - torch.tensor(found.mean)) / torch.tensor(found.std)
    torch.testing.assert_close(seen, ours)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Timm(name="tf_efficientnet_lite0", weights_file="w.pt"), LITE0),
        (Timm(name="vit_small_resnet50d_s16_224", weights_file="w.pt"), IMAGENET),
        (TorchVision(name="resnet18", weights_file="w.pt"), IMAGENET),
        (MODELS["resnet18"](pretrained=True), IMAGENET),
        (MODELS["squeezenet"](weights_file="w.pt", resize_to=64), IMAGENET),
        (Timm(name="tf_efficientnet_lite0"), None),
        (Timm(name="tf_efficientnet_lite0", pretrained=True, normalise_by="data"), None),
        (MODELS["resnet20"](weights_file="w.pt"), None),
    ],
)
def test_weights_that_a_library_knows_bring_their_statistics(model, expected):
    assert statistics_of(model) == expected


def test_grey_images_have_the_means_of_three_channels_and_other_numbers_none():
    model = Timm(name="resnet18", pretrained=True)
    grey = statistics_of(model, in_channels=1)
    assert grey["mean"] == pytest.approx((0.449,)) and grey["std"] == pytest.approx((0.226,))
    assert statistics_of(model, in_channels=4) is None


def test_the_field_is_left_out_where_it_is_the_default():
    assert "normalise_by" not in Timm(name="resnet18").model_dump()
    assert Timm(name="resnet18", normalise_by="data").model_dump()["normalise_by"] == "data"
