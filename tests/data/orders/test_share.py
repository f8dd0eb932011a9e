"""How devices share an order: every sample once, in the steps of a single device."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.data.orders import WHOLE, Share


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 60))
def test_each_sample_of_each_step_goes_to_one_device(size: int, each: int, num: int) -> None:
    samples_per_step = size * each
    epoch = np.arange(num)
    shares = [Share(rank, size, samples_per_step) for rank in range(size)]
    begins = [0] * size
    for first in range(0, num, samples_per_step):
        count = min(samples_per_step, num - first)
        ends = [b + c for b, c in zip(begins, shares[0].counts(count), strict=True)]
        taken = [s.of(epoch)[b:e] for s, b, e in zip(shares, begins, ends, strict=True)]
        assert np.concatenate(taken).tolist() == list(range(first, first + count))
        begins = ends


@given(st.integers(1, 8), st.integers(0, 40))
def test_ragged_steps_are_cut_evenly_and_the_first_has_most(size: int, num: int) -> None:
    counts = Share(0, size, 5 * size).counts(num)
    assert sum(counts) == num and len(counts) == size
    assert sorted(counts, reverse=True) == list(counts)
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("num", [0, 1, 7])
def test_the_only_device_takes_everything(num: int) -> None:
    epoch = np.arange(num)
    assert WHOLE.of(epoch) is epoch and WHOLE.counts(num) == (num,)


def test_tables_are_cut_along_their_last_axis() -> None:
    table = np.arange(20).reshape(2, 10)
    assert Share(1, 2, 4).of(table).tolist() == [[2, 3, 6, 7, 9], [12, 13, 16, 17, 19]]
