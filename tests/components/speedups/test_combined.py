import functools
import itertools
import math
from collections.abc import Iterable
from typing import Any, get_args

import pydantic
import pytest
import torch
from helpers.components.techniques import (
    SETTINGS,
    TECHNIQUES,
    Everything,
    EverythingNetwork,
    changes,
    make_start,
)
from helpers.training.tiny import CPU, make_recipe, make_splits, make_workload, to_end
from torch import nn

from tune_speed.components.models import MODELS
from tune_speed.components.optim.optimizers import Adam
from tune_speed.components.speedups import SPEEDUPS
from tune_speed.components.speedups.base import Shape, Slot
from tune_speed.components.speedups.initial_weights import (
    Kaiming,
    PretrainOther,
    PretrainSubset,
    Whitening,
)
from tune_speed.components.speedups.losses import EasiestFirst, Focal
from tune_speed.components.speedups.network import Boosted
from tune_speed.core.config import Component, descriptions
from tune_speed.core.errors import ConfigError
from tune_speed.core.records import RunResult, Status
from tune_speed.data import ORDERS
from tune_speed.training.build import Job
from tune_speed.training.loop import train
from tune_speed.training.step.step import Group, Stepper


def merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    slots = {**first.get("speedups", {}), **second.get("speedups", {})}
    return {**first, **second, **({"speedups": slots} if slots else {})}


def both(first: str, second: str) -> dict[str, Any]:
    return merged(changes(first), changes(second))


def slot(name: str) -> str:
    return "order" if name in ORDERS else SPEEDUPS[name].slot


def reason(first: str, second: str) -> str | None:
    told = [
        SPEEDUPS[a].conflicts.get(b) for a, b in ((first, second), (second, first)) if a in SPEEDUPS
    ]
    return next((text for text in told if text), None)


def two_steps(**fields: Any) -> RunResult:
    recipe = make_recipe(model=Everything(), **{"epochs": 0.7, **fields})
    run = train(Job(make_workload(), recipe, make_splits(), seed=0, device=CPU))
    return to_end(run)


@functools.cache
def alone(name: str) -> RunResult:
    return two_steps(**changes(name))


def fields_of(names: tuple[str, ...]) -> dict[str, Any]:
    return functools.reduce(merged, map(changes, names))


def grown(group: tuple[str, ...], names: Iterable[str]) -> tuple[str, ...]:
    for name in names:
        if all(slot(name) != slot(other) and not reason(name, other) for other in group):
            group = (*group, name)
    return group


def groups(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    left, found = list(pairs), []
    while left:
        first, second = next(iter(left))
        group = grown((first, second), [n for n in TECHNIQUES if any(n in pair for pair in left)])
        found.append(group)
        left = [pair for pair in left if not {*pair} <= {*group}]
    return found


PAIRS = [(a, b) for a, b in itertools.combinations(TECHNIQUES, 2) if slot(a) != slot(b)]
COMPATIBLE = [pair for pair in PAIRS if reason(*pair) is None]
EXCLUSIVE = [pair for pair in PAIRS if reason(*pair) is not None]


@pytest.mark.parametrize("name", TECHNIQUES)
def test_technique_trains_by_itself(name: str) -> None:
    result = alone(name)
    assert result.status == Status.MISSED and result.steps >= 2
    assert result.final is not None and math.isfinite(result.final.loss)


@pytest.mark.parametrize("names", groups(COMPATIBLE))
def test_techniques_of_each_compatible_pair_train_together_with_others(names):
    result = two_steps(**fields_of(names))
    assert result.status == Status.MISSED
    assert result.final is not None and result.final.loss is not None
    assert math.isfinite(result.final.loss)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), COMPATIBLE)
def test_compatible_pair_trains_two_steps(first: str, second: str) -> None:
    result = two_steps(**both(first, second))
    assert result.status == Status.MISSED
    assert result.final is not None and result.final.loss is not None
    assert math.isfinite(result.final.loss)


@pytest.mark.parametrize(("first", "second"), EXCLUSIVE)
def test_exclusive_pair_is_refused_with_its_reason(first: str, second: str) -> None:
    with pytest.raises(pydantic.ValidationError) as refusal:
        make_recipe(**both(first, second))
    assert str(reason(first, second)) in str(refusal.value)


@pytest.mark.parametrize("setting", SETTINGS)
def test_techniques_go_with_each_setting_in_groups_or_say_why_not(setting: str) -> None:
    left = []
    for name in TECHNIQUES:
        try:
            make_recipe(**both(name, setting))
            left.append(name)
        except pydantic.ValidationError as refusal:
            assert name in str(refusal)
    assert len(left) > len(TECHNIQUES) / 2
    while left:
        group = grown((left[0],), left)
        result = two_steps(**fields_of((*group, setting)))
        assert result.status in (Status.MISSED, Status.DIVERGED), group
        left = [name for name in left if name not in group]


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", TECHNIQUES)
def test_technique_goes_with_each_setting_or_says_why_not(name: str, setting: str) -> None:
    try:
        fields = both(name, setting)
        result = two_steps(**fields)
    except pydantic.ValidationError as refusal:
        assert name in str(refusal)
        return
    assert result.status in (Status.MISSED, Status.DIVERGED)


def test_training_with_a_technique_follows_from_the_seed() -> None:
    for name in TECHNIQUES:
        first, again = alone(name), two_steps(**changes(name))
        assert [e.loss for e in first.evaluations] == [e.loss for e in again.evaluations], name


def test_network_of_these_tests_has_what_techniques_act_on() -> None:
    model = EverythingNetwork(1, 3)
    assert torch.equal(model.eval()(torch.ones(2, 1, 6, 6)), model(torch.ones(2, 1, 6, 6)))


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


NAMES = sorted(SPEEDUPS)
FIELDS_SPEEDUPS_CONTRACT = {"pretrain_other": {"dataset": {"name": "digits"}}}
"""What must be given; all else has defaults."""


@pytest.mark.parametrize("name", NAMES)
def test_config_round_trips_through_json(name):
    config = SPEEDUPS[name](**FIELDS_SPEEDUPS_CONTRACT.get(name, {}))
    assert SPEEDUPS[name].model_validate_json(config.model_dump_json()) == config
    component = Component(SPEEDUPS)
    read, fields = component.split(component.join(config))
    assert SPEEDUPS[read](**fields) == config


@pytest.mark.parametrize("name", NAMES)
def test_every_speedup_and_field_is_described_with_its_source(name):
    summary, *rest = (SPEEDUPS[name].__doc__ or "").split("\n\n")
    assert "\n" not in summary and "Source:" in "".join(rest)
    assert set(descriptions(SPEEDUPS[name])) == set(SPEEDUPS[name].model_fields)


@pytest.mark.parametrize("name", NAMES)
def test_slot_and_conflicts_are_names_that_exist(name):
    assert SPEEDUPS[name].slot in get_args(Slot)
    assert SPEEDUPS[name].conflicts.keys() <= {*SPEEDUPS, *ORDERS} - {name}


@pytest.mark.parametrize("name", NAMES)
def test_growth_covers_the_run_and_it_ends_with_whole_images(name):
    config = SPEEDUPS[name](**FIELDS_SPEEDUPS_CONTRACT.get(name, {}))
    shares, factors = zip(*config.growth(), strict=True)
    assert sum(shares) == pytest.approx(1) and min(factors) >= 1
    last = config.shape(Shape(32, 32), frac=0.999)
    assert (last.height, last.width, last.kept_frac) == (32, 32, 1)
