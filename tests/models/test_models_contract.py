import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from tune_speed.config import Component
from tune_speed.models import MODELS

FIELDS = {
    "resnet20": {},
    "timm": {"name": "resnet10t", "stem": "cifar", "drop_rate": 0.1},
    "torchvision": {"name": "resnet18", "stem": "cifar"},
}
CASES = {name: kind(**FIELDS[name]) for name, kind in MODELS.items()}
NAMES = sorted(MODELS)


@pytest.mark.parametrize("name", NAMES)
def test_model_config_round_trips_through_json(name):
    config = CASES[name]
    assert MODELS[name].model_validate_json(config.model_dump_json()) == config
    component = Component(MODELS)
    read, fields = component.split(component.join(config))
    assert MODELS[read](**fields) == config


@pytest.mark.parametrize("name", NAMES)
def test_every_model_and_field_is_described(name):
    assert MODELS[name].__doc__
    assert all(field.description for field in MODELS[name].model_fields.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("in_channels", "num_classes", "image_size"), [(3, 10, 32), (1, 7, 8)])
def test_model_trains_on_small_images(name, in_channels, num_classes, image_size):
    network = CASES[name].build(
        in_channels=in_channels, num_classes=num_classes, image_size=image_size
    )
    logits = network(torch.randn(4, in_channels, image_size, image_size))
    assert logits.shape == (4, num_classes)
    F.cross_entropy(logits, torch.arange(4)).backward()
    gradients = [p.grad for p in network.parameters()]
    assert all(g is not None and g.isfinite().all() for g in gradients)
    assert any(g.abs().sum() > 0 for g in gradients)


@pytest.mark.parametrize("name", NAMES)
def test_weights_follow_from_the_seed(name):
    shape = {"in_channels": 3, "num_classes": 10, "image_size": 32}
    networks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        networks.append(CASES[name].build(**shape))
    first, again, other = ([*n.parameters()] for n in networks)
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, other))


@pytest.mark.parametrize("name", NAMES)
def test_check_passes_and_leaves_the_random_numbers_alone(name):
    before = torch.get_rng_state()
    CASES[name].check(in_channels=1, num_classes=7, image_size=8)
    assert torch.equal(torch.get_rng_state(), before)


def test_models_are_listed_without_importing_torch():
    code = (
        "import sys; from tune_speed import models, optim, schedules; "
        "tables = (models.MODELS, optim.OPTIMIZERS, schedules.SCHEDULES); "
        "[kind.model_json_schema() for table in tables for kind in table.values()]; "
        "print({'torch', 'timm', 'torchvision'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
