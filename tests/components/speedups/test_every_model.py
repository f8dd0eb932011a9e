"""Every model trains with every loss and every initialisation, or is refused with a reason."""

from typing import Any

import pytest
import torch
from starting import make_start
from torch import nn
from training import CPU, make_recipe

from tune_speed.components.models import MODELS
from tune_speed.components.optim.optimizers import Adam
from tune_speed.components.speedups.base import Shape
from tune_speed.components.speedups.initial_weights import (
    Kaiming,
    PretrainOther,
    PretrainSubset,
    Whitening,
)
from tune_speed.components.speedups.losses import EasiestFirst, Focal
from tune_speed.components.speedups.network import Boosted
from tune_speed.core.errors import ConfigError
from tune_speed.training.step.step import Group, Stepper

FIELDS = {
    "timm": {"name": "resnet14t", "stem": "cifar"},  # Of bottlenecks, as resnet50.
    "torchvision": {"name": "resnet18", "stem": "cifar"},
}
CONFIGS = {name: kind(**FIELDS.get(name, {})) for name, kind in MODELS.items()}
# Every loss and initialisation, one of each at a time.
LOSSES_AND_STARTS = {
    "focal, kaiming": (Focal(), Kaiming()),
    "easiest_first, whitening": (EasiestFirst(groups=(0, 0, 1, 1)), Whitening(images=8)),
    "boosted, zero_init_last": (Boosted(stages=2), Kaiming(zero_init_last=True)),
    "pretrain_subset": (PretrainSubset(part=0.5),),
    "pretrain_other": (PretrainOther(dataset={"name": "digits"}, train_samples=10),),
}
NUM_CLASSES, NUM_STEPS = 4, 10


def takes(speedup: Any, network: nn.Module) -> bool:
    """Whether a network is not refused; a refusal names it."""
    try:
        speedup.check_model(network)
    except ConfigError as refusal:
        assert type(network).__name__ in str(refusal)
        return False
    return True


def leave(model: nn.Module, batches: Any, num_steps: int) -> None:
    """Stands for a short training: what is asked is whether the long one moves all."""


@pytest.mark.slow
@pytest.mark.parametrize("techniques", LOSSES_AND_STARTS)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_after_ten_steps_every_trainable_tensor_has_moved(name, techniques):
    torch.manual_seed(0)
    # VGG takes none smaller, and digits are grey.
    size = 32 if name.startswith("vgg") else 16
    channels = 1 if techniques == "pretrain_other" else 3
    data = {"in_channels": channels, "num_classes": NUM_CLASSES, "image_size": size}
    network = CONFIGS[name].build(**data)
    speedups = [each for each in LOSSES_AND_STARTS[techniques] if takes(each, network)]
    if not speedups:
        return
    images, labels = torch.randn(8, channels, size, size), torch.arange(8) % NUM_CLASSES
    # Its steps are of one size, so that a gradient which is tiny moves a weight too.
    recipe = make_recipe(optimizer=Adam(lr=1e-3), speedups={s.slot: s for s in speedups})
    network = recipe.speedups.change_model(network, num_classes=NUM_CLASSES, seed=0).train()
    # In the slots' order, as in a run: kaiming after focal would undo the prior.
    start = make_start(images, labels, num_classes=NUM_CLASSES, fit=leave)
    recipe.speedups.init_weights(network, start)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    stepper, trained = Stepper(network, network, recipe, device=CPU), set()
    for step in range(NUM_STEPS):
        shape = recipe.speedups.shape(Shape(size, size), frac=step / NUM_STEPS)
        recipe.speedups.begin_step(network, shape)
        trained |= {name for name, p in network.named_parameters() if p.requires_grad}
        stepper.learn(Group(8, [(images, labels)]), shape, frac=(step + 1) / NUM_STEPS)
    now = dict(network.named_parameters())
    assert trained
    assert not [name for name in trained if torch.equal(now[name], before[name])]
