from typing import Any

import pytest
import torch

from tune_speed.components.models.cifar import ResNet20
from tune_speed.components.optim.optimizers import Adam, Sgd
from tune_speed.components.schedules.one_cycle import OneCycle
from tune_speed.components.speedups.base import Shape
from tune_speed.training import throughput
from tune_speed.training.build import set_kernels
from tune_speed.training.recipe import Recipe
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


def make_recipe(**changes: Any) -> Recipe:
    fields = {"optimizer": Sgd(lr=0.1), "epochs": 2.0, "batch_size": 8, **changes}
    return Recipe(model=ResNet20(), **fields)


def key(recipe: Recipe | None = None, **changes: Any) -> str:
    fields = {**PLACE, **changes}
    place = Place(**{name: fields.pop(name) for name in Place._fields})
    return throughput_key(recipe or make_recipe(), place=place, **fields)


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": Sgd(lr=3.0, momentum=0.5)},
        {"lr_schedule": OneCycle(pct_start=0.2)},
        {"epochs": 7.5},
    ],
)
def test_what_changes_only_learning_is_not_in_the_key(change: dict[str, Any]) -> None:
    assert key(make_recipe(**change)) == key()


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
    ],
)
def test_what_changes_a_steps_speed_is_in_the_key(change: dict[str, Any]) -> None:
    assert key(make_recipe(**change)) != key()


@pytest.mark.parametrize(
    "change",
    [
        {"shape": Shape(16, 16)},
        {"shape": Shape(32, 32, growth=2)},
        {"shape": Shape(32, 32, is_bias_frozen=True)},
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


def test_steps_that_were_timed_before_biases_were_frozen_keep_their_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed = dict[str, Any]()
    monkeypatch.setattr(throughput, "canonical_hash", hashed.update)
    key()
    shape = {"height": 32, "width": 32, "growth": 1, "kept_frac": 1.0, "stage": 0}
    assert hashed["shape"] == shape


def test_the_hosts_name_is_not_in_the_key() -> None:
    assert key(environment={"torch": "2.15.0", "host": "b"}) == key()


def test_one_norm_costs_as_much_as_another() -> None:
    assert key(make_recipe(clip_norm=1.0)) == key(make_recipe(clip_norm=5.0))
    assert key(make_recipe(clip_value=1.0)) == key(make_recipe(clip_value=5.0))


def test_each_field_of_a_recipe_is_in_the_key_unless_it_is_named() -> None:
    """A new field of the recipe is taken to change a step's speed until somebody says otherwise."""
    assert set(make_recipe().speed_fields()) == set(Recipe.model_fields) - Recipe.untimed_fields


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_matrix_products_have_the_recipes_precision(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        set_kernels(make_recipe(matmul_precision=precision))
        assert torch.get_float32_matmul_precision() == precision
        assert torch.backends.cuda.matmul.allow_tf32 == (precision == "high")
    finally:
        torch.set_float32_matmul_precision(before)


def test_keys_of_an_earlier_protocol_are_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    now = key()
    monkeypatch.setattr(throughput, "PROTOCOL", throughput.PROTOCOL - 1)
    assert key() != now
