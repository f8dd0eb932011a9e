import numpy as np
import pytest
from scipy import stats

from tune_speed.core.stats import mean_interval


def test_mean_and_spread_by_hand() -> None:
    """1, 2, 3, 4, 5: mean 3, sample variance 2.5, t(0.975, 4) = 2.7764."""
    found = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0 and found.n == 5
    assert found.sd == pytest.approx(2.5**0.5)
    assert found.high == pytest.approx(3 + 2.7764 * (2.5 / 5) ** 0.5, abs=1e-4)


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_interval_is_scipys(confidence: float) -> None:
    values = np.random.default_rng(0).normal(size=7)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(confidence)
    found = mean_interval(values.tolist(), confidence=confidence)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_single_run_has_no_spread() -> None:
    assert mean_interval([0.9]) == (0.9, None, None, None, 1)


def test_equal_runs_have_a_spread_of_zero() -> None:
    found = mean_interval([0.5, 0.5])
    assert (found.sd, found.low, found.high) == (0.0, 0.5, 0.5)


def test_interval_of_times_never_reaches_below_0() -> None:
    """8 and 80 s: mean 44, deviation 50.9, t(0.975, 1) = 12.706; h / m is 10.4."""
    assert mean_interval([8.0, 80.0]).low == pytest.approx(44 - 12.706 * 36, rel=1e-3)
    found = mean_interval([8.0, 80.0], is_positive=True)
    assert (found.mean, found.n) == (44.0, 2)
    assert found.low == pytest.approx(44 * np.exp(-12.7062 * 36 / 44), rel=1e-3)
    assert found.high == pytest.approx(44 * np.exp(12.7062 * 36 / 44), rel=1e-3)


def test_interval_of_times_that_hardly_differ_is_students() -> None:
    times_s = [10.0, 10.1, 9.9, 10.2, 9.8]
    found, plain = mean_interval(times_s, is_positive=True), mean_interval(times_s)
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high), rel=1e-3)


def test_interval_of_a_share_stays_within_0_and_1() -> None:
    """0.9 and 1: mean 0.95, deviation 0.0707, t(0.975, 1) = 12.706; h is 0.635."""
    assert mean_interval([0.9, 1.0]).high == pytest.approx(0.95 + 0.6353, abs=1e-3)
    found = mean_interval([0.9, 1.0], is_share=True)
    reach = 0.63531 / (0.95 * 0.05)
    assert found.mean == 0.95 and found.low is not None and found.high is not None
    assert found.low == pytest.approx(1 / (1 + np.exp(-np.log(19) + reach)), rel=1e-3)
    assert 1 - found.high == pytest.approx(1 / (1 + np.exp(np.log(19) + reach)), rel=1e-3)


@pytest.mark.parametrize("values", [[0.0, 1.0], [1e-9, 0.0], [1.0, 1.0], [0.0, 0.0], [0.3, 0.3]])
def test_interval_of_any_shares_is_around_their_mean(values: list[float]) -> None:
    found = mean_interval(values, confidence=0.999, is_share=True)
    assert found.low is not None and found.high is not None
    assert 0 <= found.low <= found.mean <= found.high <= 1


def test_interval_of_shares_that_hardly_differ_is_students() -> None:
    shares = [0.91, 0.912, 0.909, 0.911, 0.91]
    found, plain = mean_interval(shares, is_share=True), mean_interval(shares)
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high), rel=1e-4)
