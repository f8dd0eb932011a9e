"""What every entry of ORDERS must do."""

import numpy as np
import pytest

from tune_speed.core.config import Component
from tune_speed.core.descriptions import descriptions
from tune_speed.data import ORDERS
from tune_speed.data.orders import Order, Shuffle
from tune_speed.data.randomness import permutation

LABELS = np.repeat(np.arange(3), (60, 30, 10))
NAMES = sorted(ORDERS)


def open_order(name: str, *, seed: int = 1) -> Order:
    return ORDERS[name]().open(LABELS, batch_size=8, samples_per_step=16, seed=seed)


def scored(name: str, *, seed: int = 1) -> Order:
    scores = np.random.default_rng(0).random(len(LABELS))
    return open_order(name, seed=seed).with_scores(scores)


@pytest.mark.parametrize("name", NAMES)
def test_config_round_trips_through_json(name: str) -> None:
    config = ORDERS[name]()
    assert ORDERS[name].model_validate_json(config.model_dump_json()) == config
    read, fields = Component(ORDERS).split(Component(ORDERS).join(config))
    assert ORDERS[read](**fields) == config


@pytest.mark.parametrize("name", NAMES)
def test_every_order_and_field_is_described_with_its_source(name: str) -> None:
    assert "Source:" in (ORDERS[name].__doc__ or "")
    assert set(descriptions(ORDERS[name])) == set(ORDERS[name].model_fields)


@pytest.mark.parametrize("make", [open_order, scored])
@pytest.mark.parametrize("name", NAMES)
def test_rounds_have_the_samples_that_they_say(name: str, make: object) -> None:
    order = make(name)  # type: ignore[operator]
    for number in range(12):
        indices = order.epoch(number)
        assert indices.dtype == np.int64 and len(indices) == order.num_in(number) >= 1
        assert indices.min() >= 0 and indices.max() < len(LABELS)
        assert order.repeats or len(set(indices)) == len(indices)


@pytest.mark.parametrize("name", NAMES)
def test_rounds_follow_from_seed_and_number_alone(name: str) -> None:
    order, again, other = scored(name), scored(name), scored(name, seed=2)
    for number in (9, 0, 10):
        assert (order.epoch(number) == again.epoch(number)).all()
        assert (
            order.num_in(number) != other.num_in(number)
            or (order.epoch(number) != other.epoch(number)).any()
        )
    assert order.epoch(9).tolist() != order.epoch(10).tolist()


@pytest.mark.parametrize("name", NAMES)
def test_order_without_scores_shows_every_image_in_every_round(name: str) -> None:
    order = open_order(name)
    for number in range(3):
        assert set(order.epoch(number)) == set(range(len(LABELS)))


def test_shuffle_is_the_permutation_of_seed_and_epoch() -> None:
    order = Shuffle().open(LABELS, batch_size=8, samples_per_step=16, seed=5)
    for epoch in range(3):
        assert (order.epoch(epoch) == permutation(5, epoch, 0, count=100)).all()
