"""Every model trains with every loss and every initialisation, or is refused with a reason."""

from typing import Any

import pytest
import torch
from starting import make_start
from torch import nn
from training import CPU, make_recipe

from tune_speed.components.models import MODELS
from tune_speed.components.optim import Adam
from tune_speed.components.speedups.base import Shape
from tune_speed.components.speedups.easiest_first import EasiestFirst
from tune_speed.components.speedups.focal import Focal
from tune_speed.components.speedups.kaiming import Kaiming
from tune_speed.components.speedups.whitening import Whitening
from tune_speed.core.errors import ConfigError
from tune_speed.training.step.step import Group, Stepper

FIELDS = {
    "timm": {"name": "resnet14t", "stem": "cifar"},  # Of bottlenecks, as resnet50.
    "torchvision": {"name": "resnet18", "stem": "cifar"},
}
CONFIGS = {name: kind(**FIELDS.get(name, {})) for name, kind in MODELS.items()}
# Left out: layers of 40 to 120 million weights, whose steps take seconds each; they end
# with a linear layer, as the networks of most others here do. And a deeper network of timm's class.
CASES = sorted(MODELS.keys() - {"alexnet", "vgg16_bn", "vgg19", "vgg19_bn", "resnet50"})
PAIRS = [(Focal(), Kaiming()), (EasiestFirst(groups=(0, 0, 1, 1)), Whitening(images=8))]
SIZE, NUM_CLASSES, NUM_STEPS = 16, 4, 4


def takes(speedup: Any, network: nn.Module) -> bool:
    """Whether a network is not refused; a refusal names it."""
    try:
        speedup.check_model(network)
    except ConfigError as refusal:
        assert type(network).__name__ in str(refusal)
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: type(pair[0]).__name__)
@pytest.mark.parametrize("name", CASES)
def test_after_a_few_steps_every_trainable_tensor_has_moved(name, pair):
    torch.manual_seed(0)
    network = CONFIGS[name].build(in_channels=3, num_classes=NUM_CLASSES, image_size=SIZE)
    speedups = [speedup for speedup in pair if takes(speedup, network)]
    images, labels = torch.randn(8, 3, SIZE, SIZE), torch.arange(8) % NUM_CLASSES
    for speedup in speedups:
        network = speedup.change_model(network, num_classes=NUM_CLASSES, seed=0).train()
    for speedup in speedups:
        speedup.init_weights(network, make_start(images))
    before = {n: p.detach().clone() for n, p in network.named_parameters() if p.requires_grad}
    # Its steps are of one size, so that a gradient which is tiny moves a weight too.
    recipe = make_recipe(optimizer=Adam(lr=1e-3), speedups={s.slot: s for s in speedups})
    stepper = Stepper(network, network, recipe, device=CPU)
    for _ in range(NUM_STEPS):
        stepper.learn(Group(8, [(images, labels)]), Shape(SIZE, SIZE), frac=1.0)
    now = dict(network.named_parameters())
    still = [name for name, value in before.items() if torch.equal(now[name], value)]
    assert not still
