import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.data import randomness


def test_permutation_is_the_same_for_ever() -> None:
    assert randomness.permutation(1, 2, count=10).tolist() == [7, 2, 4, 3, 5, 8, 9, 1, 6, 0]


def test_permutation_sorts_the_numbers_by_their_random_words() -> None:
    words = randomness.bits(9, count=500)
    expected = sorted(range(500), key=lambda number: int(words[number]))
    assert randomness.permutation(9, count=500).tolist() == expected


@given(seed=st.integers(0, 2**63 - 1), count=st.integers(0, 300))
def test_permutation_holds_every_number_once(seed: int, count: int) -> None:
    assert sorted(randomness.permutation(seed, count=count)) == list(range(count))


@pytest.mark.parametrize("other", [(2,), (1, 0), (1, 0, 0), (0, 1), (2**32 + 1,), (1 + 2**62,)])
def test_different_keys_give_different_streams(other: tuple[int, ...]) -> None:
    ours, theirs = (randomness.bits(*key, count=8) for key in ((1,), other))
    assert not np.intersect1d(ours, theirs).size


def test_permutation_favours_no_order() -> None:
    orders = [tuple(randomness.permutation(seed, count=3)) for seed in range(3000)]
    seen, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(seen) == 6
    # Chi-square with 5 degrees of freedom: above 20.5 with probability 0.001.
    assert ((counts - 500) ** 2 / 500).sum() < 20.5


@pytest.mark.parametrize("limit", [1, 2, 9, 2**32])
def test_below_stays_below_and_is_uniform(limit: int) -> None:
    values = randomness.below(limit, 5, count=20_000)
    assert values.min() >= 0 and values.max() < limit
    # The mean of n uniform values strays by limit / sqrt(12 n); 4 of these.
    assert abs(values.mean() - (limit - 1) / 2) <= 4 * limit / (12 * 20_000) ** 0.5
