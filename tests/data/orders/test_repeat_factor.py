import numpy as np
import pytest

from tune_speed.data.orders import RepeatedOrder, RepeatFactor, Shuffle, repeat_factors
from tune_speed.data.split import long_tail


def test_factors_are_those_of_the_formula() -> None:
    shares = np.array([0.5, 0.1, 0.01, 0.001, 0.0001])
    assert repeat_factors(shares, 0.001) == pytest.approx([1, 1, 1, 1, 3.1622777])


def test_factors_of_long_tailed_cifar10() -> None:
    counts = long_tail(10, 12_406, ratio=0.01)
    expected = [1, 1, 1, 1.07, 1.39, 1.79, 2.31, 2.99, 3.87, 4.98]
    assert repeat_factors(counts / counts.sum(), 0.1) == pytest.approx(expected, abs=0.005)


def test_images_come_as_often_as_their_factor_says() -> None:
    factors = np.array([1.0, 1.25, 2.5, 3.0])
    order = RepeatedOrder(np.repeat(factors, 50), batch_size=8, seed=3)
    counts = np.stack([np.bincount(order.epoch(epoch), minlength=200) for epoch in range(60)])
    whole = np.floor(order.factors)
    assert ((counts == whole) | (counts == whole + 1)).all()
    means = counts.mean(axis=0).reshape(4, 50).mean(axis=1)
    # 3,000 draws of a coin have a standard deviation of 0.009.
    assert means == pytest.approx(factors, abs=0.036)
    assert (means == factors)[[0, 3]].all()


def test_length_is_drawn_anew_each_epoch() -> None:
    order = RepeatedOrder(np.full(100, 1.5), batch_size=8, seed=0)
    assert len({order.num_in(epoch) for epoch in range(20)}) > 5


def test_without_a_rare_class_it_is_the_plain_shuffle() -> None:
    labels = np.arange(60) % 3
    fields = {"batch_size": 8, "samples_per_step": 8, "seed": 2}
    order = RepeatFactor(threshold=0.3).open(labels, **fields)
    assert not order.repeats
    for epoch in range(3):
        assert (order.epoch(epoch) == Shuffle().open(labels, **fields).epoch(epoch)).all()


def test_class_without_images_has_factor_one() -> None:
    assert repeat_factors(np.array([1.0, 0.0]), 0.5).tolist() == [1, 1]
