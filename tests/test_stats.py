import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.stats import median_time_s, wilson_interval


def test_wilson_interval_of_8_of_10_is_the_textbooks() -> None:
    low, high = wilson_interval(8, 10)
    assert (low, high) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)


def test_wilson_interval_of_20_of_20_ends_near_084() -> None:
    assert wilson_interval(20, 20)[0] == pytest.approx(0.8388747, abs=1e-6)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_interval_is_the_closed_form(case: tuple[int, int]) -> None:
    hits, n = case
    z, p = 1.959963984540054, hits / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    expected = (max(0.0, centre - half), min(1.0, centre + half))
    assert wilson_interval(hits, n) == pytest.approx(expected, abs=1e-9)


def test_median_counts_misses_as_infinite() -> None:
    assert median_time_s([3.0, None, 1.0]) == 3.0
    assert median_time_s([None, None, 1.0]) is None
    assert median_time_s([1.0, 2.0, 3.0, None]) == 2.5


def test_median_is_infinite_where_a_middle_one_is() -> None:
    assert median_time_s([1.0, None]) is None
