from collections import Counter
from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any

import pytest
import torch
from helpers.training.tiny import CPU, make_recipe, make_splits
from pydantic import ValidationError
from torch.utils._python_dispatch import TorchDispatchMode

from tune_speed.components.models.cifar import PlainCNN, ResNet, ResNet20
from tune_speed.components.optim import OPTIMIZERS
from tune_speed.components.optim.base import MOMENTA, set_rates
from tune_speed.components.optim.optimizers import Adam, Sgd
from tune_speed.components.schedules import SCHEDULES
from tune_speed.components.schedules.base import Constant
from tune_speed.components.schedules.decays import OneCycle, OneCycleFastai
from tune_speed.components.speedups import SPEEDUPS
from tune_speed.components.speedups.base import Shape
from tune_speed.components.speedups.initial_weights import Whitening
from tune_speed.core.config import Config
from tune_speed.data import ORDERS
from tune_speed.runtime.clock import Waits
from tune_speed.training import throughput
from tune_speed.training.build import build_model, open_loader, set_kernels
from tune_speed.training.recipe import Recipe
from tune_speed.training.step.batches import open_steps
from tune_speed.training.step.step import Stepper
from tune_speed.training.throughput import Place, throughput_key

SETTINGS = {"driver": "570.133.20", "tf32_conv": "True", "allocator": "default"}
PLACE: dict[str, Any] = {
    "shape": Shape(32, 32),
    "image_shape": (32, 32, 3),
    "num_train": 1000,
    "num_classes": 10,
    "device": "cpu (1 threads, test)",
    "host": "cpu (1 threads, test)",
    "settings": SETTINGS,
    "environment": {"torch": "2.15.0", "host": "a"},
}


def recipe_of(**changes: Any) -> Recipe:
    fields = {"optimizer": Sgd(lr=0.1), "epochs": 2.0, "batch_size": 8, **changes}
    return Recipe(model=ResNet20(), **fields)


def key(recipe: Recipe | None = None, **changes: Any) -> str:
    fields = {**PLACE, **changes}
    place = Place(**{name: fields.pop(name) for name in Place._fields})
    return throughput_key(recipe or recipe_of(), place=place, **fields)


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": Sgd(lr=3.0, momentum=0.5)},
        {"lr_schedule": OneCycle(pct_start=0.2)},
        {"epochs": 7.5},
    ],
)
def test_what_changes_only_learning_is_not_in_the_key(change: dict[str, Any]) -> None:
    assert key(recipe_of(**change)) == key()


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": Adam(lr=0.1)},
        {"optimizer": Sgd(lr=0.1, weight_decay=0.1)},
        {"optimizer": Sgd(lr=0.1, decoupled_weight_decay=True)},
        {"label_smoothing": 0.1},
        {"batch_size": 16},
        {"accumulation_steps": 2},
        {"precision": "bf16"},
        {"matmul_precision": "high"},
        {"channels_last": False},
        {"compile": True},
        {"deterministic": True},
        {"clip_norm": 1.0},
        {"clip_value": 1.0},
        {"devices": 2},
        {"layer_decay": 0.5},
        {"activation_checkpointing": True},
    ],
)
def test_what_changes_a_steps_speed_is_in_the_key(change: dict[str, Any]) -> None:
    assert key(recipe_of(**change)) != key()


@pytest.mark.parametrize(
    "change",
    [
        {"shape": Shape(16, 16)},
        {"shape": Shape(32, 32, growth=2)},
        {"shape": Shape(32, 32, is_bias_frozen=True)},
        {"shape": Shape(32, 32, is_frozen=True)},
        {"image_shape": (24, 24, 3)},
        {"num_train": 999},
        {"num_classes": 100},
        {"device": "NVIDIA H200"},
        {"host": "cpu (2 threads, test)"},
        {"settings": {**SETTINGS, "driver": "580.65.06"}},
        {"settings": {**SETTINGS, "tf32_conv": "False"}},
        {"settings": {**SETTINGS, "allocator": "expandable_segments:True"}},
        {"environment": {"torch": "2.16.0", "host": "a"}},
    ],
)
def test_data_device_and_versions_are_in_the_key(change: dict[str, Any]) -> None:
    assert key(**change) != key()


def test_steps_that_were_timed_before_biases_were_frozen_keep_their_key(monkeypatch):
    hashed = dict[str, Any]()
    monkeypatch.setattr(throughput, "canonical_hash", hashed.update)
    key()
    shape = {"height": 32, "width": 32, "growth": 1, "kept_frac": 1.0, "stage": 0}
    assert hashed["shape"] == shape


def test_what_is_frozen_is_in_the_key_of_frozen_steps_alone() -> None:
    names = ("layer4", 5), ("head", 5), ("head", 6)
    recipes = [recipe_of(freeze={"until": until, "steps": steps}) for until, steps in names]
    frozen = Shape(32, 32, is_frozen=True)
    assert len({key(recipe, shape=frozen) for recipe in recipes}) == 2
    assert {key(recipe) for recipe in recipes} == {key()}
    assert key(recipe_of(layer_decay=0.5)) == key(recipe_of(layer_decay=0.9))
    assert key(recipe_of(reinit_head=False)) == key()


def test_the_hosts_name_is_not_in_the_key() -> None:
    assert key(environment={"torch": "2.15.0", "host": "b"}) == key()


def test_one_norm_costs_as_much_as_another() -> None:
    assert key(recipe_of(clip_norm=1.0)) == key(recipe_of(clip_norm=5.0))
    assert key(recipe_of(clip_value=1.0)) == key(recipe_of(clip_value=5.0))


def test_each_field_of_a_recipe_is_in_the_key_unless_it_is_named() -> None:
    given = {"layer_decay": 0.5, "head_lr_scale": 2.0, "activation_checkpointing": True}
    freeze = {"until": "head", "steps": 1}
    recipe = recipe_of(image_size=32, class_weights="balanced", freeze=freeze, **given)
    fields = set(recipe.speed_fields())
    assert fields == set(Recipe.model_fields) - Recipe.untimed_fields


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_matrix_products_have_the_recipes_precision(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        set_kernels(recipe_of(matmul_precision=precision))
        assert torch.get_float32_matmul_precision() == precision
        assert torch.backends.cuda.matmul.allow_tf32 == (precision == "high")
    finally:
        torch.set_float32_matmul_precision(before)


def test_keys_of_an_earlier_protocol_are_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    now = key()
    monkeypatch.setattr(throughput, "PROTOCOL", throughput.PROTOCOL - 1)
    assert key() != now


NUM_STEPS = 3
REQUIRED: dict[str, dict[str, Any]] = {
    "pretrain_other": {"dataset": {"name": "digits"}},
    "boosted": {"stages": 3},
    "easiest_first": {"groups": (0, 0, 1)},
    # A step is timed before the switch.
    "swats": {"switch_tolerance": 1e-12},
    "multi_step": {"milestones": (0.5,)},
}
"""Fields without a default, or whose default is for other data or a larger network."""
OTHERS = (None, 0, True, False, 2, 3, 0.05, 0.3, 0.7, 4, 6, 1e-5, (0.0, 0.3, 0.6), (1, 3, 4))
MOST_OTHERS = 3


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        num_tensors = sum(len(arg) for arg in args if isinstance(arg, list))
        # Libraries ask for their versions as they are imported.
        self.counts[str(func), num_tensors] += func.namespace == "aten"
        return func(*args, **(kwargs or {}))


_counted: dict[tuple[str, Shape], Counter[tuple[str, int]]] = {}


def operations(recipe: Recipe, shape: Shape) -> Counter[tuple[str, int]]:
    key = (repr(recipe), shape)
    if key not in _counted:
        _counted[key] = _count(recipe, shape)
    return _counted[key]


def _count(recipe: Recipe, shape: Shape) -> Counter[tuple[str, int]]:
    splits = make_splits(40)
    torch.manual_seed(0)
    model = build_model(recipe, splits, seed=0, device=CPU)
    loader = open_loader(recipe, splits.train, splits, seed=0, device=CPU)
    stepper = Stepper(model, model, recipe, device=CPU)
    stepper.averager = recipe.speedups.averaging.averager(model)
    recipe.speedups.begin(model, seed=0)
    steps = open_steps(loader, recipe, repeat((shape, 1)), Waits())
    starts = (k / 20 for k in range(20))
    # What a loss does may depend on the part of the run, as the shape does.
    frac = next((f for f in starts if recipe.speedups.shape(Shape(6, 6), frac=f) == shape), 0.5)
    with Operations() as counted:
        for number in range(NUM_STEPS + 1):
            if number == 1:  # The first step fills caches.
                counted.counts.clear()
            factors = recipe.lr_schedule.factors(
                (number + 1) / (NUM_STEPS + 1), step_frac=1 / (NUM_STEPS + 1), losses=[1.0, 0.5]
            )
            set_rates(stepper.optimizer, factors)
            _, group = next(steps)
            stepper.take(group, shape, frac=frac + 0.05)
    loader.close()
    return counted.counts


def left_out(config: Config) -> Iterator[tuple[str, Config, Config]]:
    for field in type(config).model_fields:
        others = ((value, changed(config, field, value)) for value in OTHERS)
        alike = (
            (f"{field}-{value}", config, other)
            for value, other in others
            if other not in (None, config) and other.speed_fields() == config.speed_fields()
        )
        yield from islice(alike, MOST_OTHERS)


def changed(config: Config, field: str, value: Any) -> Config | None:
    if isinstance(value, bool) != isinstance(getattr(config, field), bool):
        return None
    given = {name: getattr(config, name) for name in config.model_fields_set}
    try:
        return type(config)(**{**given, field: value})
    except (ValidationError, AttributeError):
        return None


def cases(table: dict[str, type[Any]], **fields: Any) -> Iterator[Any]:
    for name, kind in table.items():
        config = kind(**{**fields, **REQUIRED.get(name, {})})
        for field, one, other in left_out(config):
            yield pytest.param(one, other, id=f"{name}-{field}")


@pytest.mark.parametrize(
    ("one", "other"),
    # With decay, so that another decay is one of the fields.
    [*cases(OPTIMIZERS, lr=0.01, weight_decay=0.1)],
)
def test_fields_of_an_optimizer_that_the_key_leaves_out_cost_nothing(one: Any, other: Any) -> None:
    shape = Shape(6, 6)
    model = ResNet(depth=8)
    first, second = (make_recipe(model=model, optimizer=each) for each in (one, other))
    assert operations(first, shape) == operations(second, shape)


@pytest.mark.parametrize(("one", "other"), [*cases(SPEEDUPS)])
def test_fields_of_a_speedup_that_the_key_leaves_out_cost_nothing(one: Any, other: Any) -> None:
    # Of the two networks, the first convolution of the plain one has a bias.
    model = PlainCNN(width=4) if isinstance(one, Whitening) else ResNet(depth=8)
    recipes = [make_recipe(model=model, speedups={each.slot: each}) for each in (one, other)]
    # What differs by the shape of the step has a key for each shape.
    shapes = [{c.shape(Shape(6, 6), frac=k / 20) for k in range(20)} for c in (one, other)]
    for shape in shapes[0] & shapes[1]:
        assert operations(recipes[0], shape) == operations(recipes[1], shape)


CYCLES = (Constant(), OneCycle(), OneCycle(max_momentum=0.0, base_momentum=0.0), OneCycleFastai())


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_an_optimizer_costs_the_same_under_all_schedules_with_which_it_has_one_key(name):
    kind, counted = OPTIMIZERS[name], dict[str, Counter[tuple[str, int]]]()
    momenta = [name for name in MOMENTA if name in kind.switch_fields]
    for zeros in ({}, *({m: 0.0} for m in momenta), dict.fromkeys(momenta, 0.0)):
        plain = {"nesterov": False} if momenta else {}
        optimizer = kind(**{"lr": 0.01, **plain, **zeros})
        for schedule in CYCLES[:1] if kind.averages_weights else CYCLES:
            recipe = make_recipe(model=ResNet(depth=8), optimizer=optimizer, lr_schedule=schedule)
            counts, key = operations(recipe, Shape(6, 6)), repr(recipe.speed_fields())
            assert counted.setdefault(key, counts) == counts


FIELDS = {"order": ORDERS, "lr_schedule": SCHEDULES}


@pytest.mark.parametrize(
    "changes",
    [
        *(
            pytest.param({f: kind(**REQUIRED.get(name, {}))}, id=name)
            for f, table in FIELDS.items()
            for name, kind in table.items()
        ),
        {"epochs": 7.0},
        {"drop_last": True},
        {"init_loss_scale": 2.0},
        {"loss_scale_growth_steps": 3},
    ],
)
def test_fields_of_a_recipe_that_the_key_leaves_out_cost_nothing(changes: dict[str, Any]) -> None:
    shape, model = Shape(6, 6), ResNet(depth=8)
    plain, changed = make_recipe(model=model), make_recipe(model=model, **changes)
    assert plain.speed_fields() == changed.speed_fields()
    assert operations(plain, shape) == operations(changed, shape)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_rates_are_left_out_and_what_costs_is_not(name: str) -> None:
    kind = OPTIMIZERS[name]
    assert kind(lr=0.1).speed_fields() == kind(lr=0.2, lr_per_examples=64).speed_fields()
    assert kind(lr=0.1).speed_fields() != kind(lr=0.1, weight_decay=0.1).speed_fields()
    assert kind.untimed_fields | kind.switch_fields <= set(kind.model_fields)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("muon", {"newton_schulz_steps": 20}),
        ("muon", {"normalize_weights": True}),
        ("yellowfin", {"clip": False}),
        ("sgd", {"decoupled_weight_decay": True}),
    ],
)
def test_what_does_more_operations_is_in_the_key(name: str, changes: dict[str, Any]) -> None:
    plain, changed = (OPTIMIZERS[name](lr=0.01, **each) for each in ({}, changes))
    first, second = (
        make_recipe(model=ResNet(depth=8), optimizer=each) for each in (plain, changed)
    )
    assert operations(first, Shape(6, 6)) != operations(second, Shape(6, 6))
    assert first.speed_fields() != second.speed_fields()
