"""Orders whose rounds end with their last whole step."""

import numpy as np
import pytest

from tune_speed.data import ORDERS
from tune_speed.data.orders import Order, WholeSteps

LABELS = np.repeat(np.arange(3), (60, 30, 13))
STEP = 16


def opened(name: str) -> Order:
    return ORDERS[name]().open(LABELS, batch_size=8, samples_per_step=STEP, seed=1)


@pytest.mark.parametrize("is_scored", [False, True])
@pytest.mark.parametrize("name", sorted(ORDERS))
def test_rounds_lack_the_ragged_end_of_the_other_orders_and_nothing_else(
    name: str, is_scored: bool
) -> None:
    other = opened(name)
    order: Order = WholeSteps(other, STEP, 8, 1)
    if is_scored:
        scores = np.random.default_rng(0).random(len(LABELS))
        other, order = other.with_scores(scores), order.with_scores(scores)
    assert order.repeats == other.repeats
    for number in range(8):
        whole, kept = other.epoch(number), order.epoch(number)
        assert len(kept) == order.num_in(number) == STEP * (len(whole) // STEP)
        assert (kept == whole[: len(kept)]).all()


def test_a_set_of_less_than_a_step_is_kept() -> None:
    order = WholeSteps(opened("shuffle"), 200, 8, 1)
    assert order.num_in(0) == len(order.epoch(0)) == len(LABELS)
