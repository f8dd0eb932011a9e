import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from tune_speed.components.models import MODELS
from tune_speed.core.config import Component, descriptions
from tune_speed.testing.entry import hold
from tune_speed.testing.models import ModelContracts

FIELDS = {
    "timm": {"name": "resnet10t", "stem": "cifar", "drop_rate": 0.1},
    "torchvision": {"name": "shufflenet_v2_x0_5", "stem": "cifar"},
}
CASES = {name: kind(**FIELDS.get(name, {})) for name, kind in MODELS.items()}
NAMES = sorted(MODELS)
HUGE = {"alexnet", "vgg16_bn", "vgg19", "vgg19_bn"}
LARGE = HUGE | {"resnet50"}
DEEPER = {"vgg19", "vgg19_bn"}
"""HUGE ones of a class that has fewer layers as `vgg16_bn`; on the meta device they are tested."""
SMALLEST_IMAGE = {"vgg16_bn": 32, "vgg19": 32, "vgg19_bn": 32}
"""Smallest image [pixels] of the models that do not take 8 pixels."""


@pytest.mark.parametrize("name", NAMES)
def test_model_config_round_trips_through_json(name):
    config = CASES[name]
    assert MODELS[name].model_validate_json(config.model_dump_json()) == config
    component = Component(MODELS)
    read, fields = component.split(component.join(config))
    assert MODELS[read](**fields) == config


@pytest.mark.parametrize("name", NAMES)
def test_every_model_and_field_is_described_with_its_source(name):
    assert "Source:" in (MODELS[name].__doc__ or "")
    assert set(descriptions(MODELS[name])) == set(MODELS[name].model_fields)


@pytest.mark.parametrize(
    ("name", "in_channels", "num_classes", "image_size", "device"),
    # On the meta device there are shapes alone, and no millions of numbers to draw.
    [(n, 1, 7, SMALLEST_IMAGE.get(n, 8), "meta" if n in LARGE else "cpu") for n in NAMES]
    + [(n, 3, 10, 16, "cpu") for n in NAMES if n not in HUGE]
    + [pytest.param(n, 3, 10, 32, "cpu", marks=pytest.mark.slow) for n in sorted(HUGE - DEEPER)],
)
def test_model_trains_on_small_images(name, in_channels, num_classes, image_size, device):
    with torch.device(device):
        network = CASES[name].build(
            in_channels=in_channels, num_classes=num_classes, image_size=image_size
        )
        logits = network(torch.randn(4, in_channels, image_size, image_size))
        assert logits.shape == (4, num_classes)
        F.cross_entropy(logits, torch.arange(4)).backward()
    gradients = [p.grad for p in network.parameters()]
    assert all(g is not None for g in gradients)
    if device == "cpu":
        assert all(g.isfinite().all() for g in gradients)
        assert any(g.any() for g in gradients)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n
        for n in NAMES
        if n not in DEEPER
    ],
)
def test_weights_follow_from_the_seed(name):
    contracts = ModelContracts(name=name, entry=MODELS[name], fields=FIELDS.get(name, {}))
    hold(contracts, "weights_follow_from_the_seed")


@pytest.mark.parametrize("name", NAMES)
def test_check_passes_and_leaves_the_random_numbers_alone(name):
    before = torch.get_rng_state()
    CASES[name].check(in_channels=1, num_classes=7, image_size=SMALLEST_IMAGE.get(name, 8))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "name",
    [*sorted(set(NAMES) - LARGE), pytest.param("resnet50", marks=pytest.mark.slow)],
)
def test_weights_file_gives_back_all_but_a_classifier_of_other_classes(name, tmp_path):
    shape = {"in_channels": 3, "image_size": 16}
    saved = CASES[name].build(num_classes=100, **shape).state_dict()
    torch.save(saved, tmp_path / "w.pt")
    config = CASES[name].model_copy(update={"weights_file": str(tmp_path / "w.pt")})
    same = config.build(num_classes=100, **shape).state_dict()
    other = config.build(num_classes=10, **shape).state_dict()
    fresh = {key for key in saved if not torch.equal(saved[key], other[key])}
    assert all(torch.equal(saved[key], same[key]) for key in saved)
    assert fresh <= {
        key for key in other if key.endswith(("weight", "bias")) and len(other[key]) == 10
    }
    assert any(key.endswith("weight") for key in fresh)


@pytest.mark.parametrize("name", [n for n in NAMES if "pretrained" in MODELS[n].model_fields])
def test_weights_come_from_one_origin(name):
    with pytest.raises(ValidationError, match="must not be given both"):
        MODELS[name](**FIELDS.get(name, {}), pretrained=True, weights_file="w.pt")
