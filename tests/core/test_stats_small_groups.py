"""Draws and comparisons of very few runs, against Student's t and ratios computed by hand."""

import math
import statistics

import numpy as np
import pytest
from helpers.making import make_record, make_run
from scipy.stats import t as student

from tune_speed.core.records import Status
from tune_speed.core.significance import compare
from tune_speed.core.stats import (
    NUM_DRAWS,
    RunStatistics,
    Sample,
    TimeInterval,
    central,
    expected_time_draws_s,
    expected_time_interval_s,
    ranked_s,
    sample_of,
)


def hits(*times_s: float) -> list[Sample]:
    return [Sample(time_s, True) for time_s in times_s]


def misses(*times_s: float) -> list[Sample]:
    return [Sample(time_s, False) for time_s in times_s]


def unmissed(samples: list[Sample]) -> np.ndarray:
    """Returns the draws that know no miss, in order: a miss would cost an age."""
    draws = expected_time_draws_s(samples, miss_s=1e12)
    return np.sort(draws[draws < 1e6])


def test_three_runs_have_a_spread_of_their_own_and_two_borrow_that_of_all() -> None:
    shares = np.array([0.1, 0.5, 0.9])
    three = unmissed(hits(8.0, 10.0, 12.0))
    found = three[(shares * len(three)).astype(int)]
    # Relative deviation 0.2, so 0.2 / √3 with two degrees of freedom, of the logarithm.
    expected = 10 * np.exp(0.2 / math.sqrt(3) * student(2).ppf(shares))
    assert found == pytest.approx(expected, rel=0.01)
    two = unmissed(hits(9.0, 11.0))
    found = two[(shares * len(two)).astype(int)]
    # Relative deviation √2 / 10, one degree of freedom.
    assert found == pytest.approx(10 * np.exp(0.1 * student(1).ppf(shares)), rel=0.03)


def test_two_hits_beside_misses_borrow_the_pooled_spread() -> None:
    samples = [*hits(9.0, 11.0), *misses(18.0, 20.0, 22.0)]
    # Relative squares 0.02 and 0.02, three degrees of freedom in all.
    pooled = math.sqrt(0.04 / 3)
    quantiles = (np.arange(9999) + 0.5) / 9999
    hit_s = 10 * np.exp(pooled / math.sqrt(2) * student(3).ppf(quantiles))
    # Misses have a spread of their own: 2 s, two degrees of freedom.
    miss_s = 20 * np.exp(0.1 / math.sqrt(3) * student(2).ppf(quantiles))
    rng = np.random.default_rng(0)
    rate = np.concatenate([rng.beta(2, 4, 200_000), rng.beta(3, 3, 200_000)])
    drawn = rng.choice(hit_s, 400_000) + (1 - rate) / rate * rng.choice(miss_s, 400_000)
    ours = expected_time_draws_s(samples)
    for share in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert np.quantile(ours, share) == pytest.approx(np.quantile(drawn, share), rel=0.06)


def test_times_that_differ_widely_have_no_interval_that_begins_at_0() -> None:
    low, high = expected_time_interval_s(hits(8.0, 80.0))
    assert 0 < low < 44.0 < high
    low, high = expected_time_interval_s([*hits(5.0, 90.0, 40.0), *misses(60.0)])
    assert 0 < low < 65.0 < high


def test_unseen_miss_costs_as_much_as_the_longest_hit() -> None:
    samples = hits(8.0, 10.0, 12.0)
    np.testing.assert_array_equal(
        expected_time_draws_s(samples), expected_time_draws_s(samples, miss_s=12.0)
    )
    assert not np.array_equal(
        expected_time_draws_s(samples), expected_time_draws_s(samples, seed=1)
    )
    assert len(expected_time_draws_s(hits(1.0))) == NUM_DRAWS == 4096


def test_middle_leaves_out_the_same_number_of_draws_on_each_side() -> None:
    draws = np.array([5.0, 1.0, 4.0, 2.0, 3.0, math.inf, 0.0, 7.0, 6.0, 8.0])
    assert central(draws, 1.0) == (0.0, math.inf)
    assert central(draws, 0.8) == (0.0, math.inf)  # Rounding takes 0.99 of one for none.
    assert central(draws, 0.79) == (1.0, 8.0)
    assert central(draws, 0.5) == (2.0, 7.0)


def test_miss_that_took_no_time_costs_a_thousandth_of_a_second() -> None:
    run = make_run(Status.FAILED, time_s=1.0)
    clocks = run.clocks.model_copy(update={"train_s": 0.0})
    assert sample_of(run.model_copy(update={"clocks": clocks})) == Sample(1e-3, False)
    assert sample_of(run) == Sample(1.0, False)
    assert sample_of(make_run(time_s=1e-6)) == Sample(1e-6, True)


def test_rank_is_the_only_time_or_the_expected_one_where_most_runs_met_the_target() -> None:
    def ranked(*statuses: Status) -> float | None:
        return ranked_s(make_record(runs=tuple(make_run(s, time_s=4.0) for s in statuses)))

    hit, miss = Status.REACHED, Status.MISSED
    assert [ranked(hit), ranked(miss), ranked(hit, hit)] == [4.0, None, 4.0]
    assert ranked(hit, miss) is None
    assert ranked(hit, hit, miss) == 6.0


def test_statistics_of_a_record_take_its_limit_as_the_price_of_a_miss() -> None:
    record = make_record(runs=tuple(make_run(time_s=s) for s in (1.0, 1.1, 0.9)))
    limited = {**record.workload, "mode": "anytime", "max_train_s": 50.0}
    found = RunStatistics.of(record.model_copy(update={"workload": limited}), confidence=0.8)
    assert (found.miss_s, found.confidence, found.hits_s) == (50.0, 0.8, [1.0, 1.1, 0.9])
    assert found.expected_interval.confidence == 0.8
    assert RunStatistics.of(record).miss_s is None and RunStatistics.of(record).confidence == 0.95
    assert TimeInterval.of(1.0, math.inf, 0.9).model_dump() == {
        "low_s": 1.0,
        "high_s": None,
        "confidence": 0.9,
    }


def test_ratio_of_recipes_of_which_one_missed_is_that_of_independent_draws() -> None:
    a, b = [*hits(8.0, 10.0, 12.0, 9.0), *misses(15.0)], hits(20.0, 24.0, 22.0, 21.0, 23.0)
    found = compare(a, b, confidence=0.9, miss_s=40.0)
    above = expected_time_draws_s(a, seed=0, miss_s=40.0)
    below = expected_time_draws_s(b, seed=1, miss_s=40.0)
    low, high = np.quantile(above / below, [0.05, 0.95])
    assert (found.low, found.high) == pytest.approx((low, high), rel=0.01)
    assert found.ratio == pytest.approx((54 / 4) / 22)
    # Differences -0.9, -0.9, -0.6, -0.8 and a miss: the largest rank of five is against it.
    assert found.p_value == pytest.approx(sum(s <= 5 for s in subset_sums(5)) / 32)
    assert found.num_pairs == 5 and "fiducial" in found.method


def subset_sums(n: int) -> list[int]:
    return [sum(i + 1 for i in range(n) if bits >> i & 1) for bits in range(2**n)]


def test_never_hitting_against_hitting_is_infinitely_slower() -> None:
    found = compare(misses(1.0, 1.0, 1.0), hits(2.0, 2.1, 2.2))
    assert found.ratio == math.inf == found.high and found.p_value == 1.0
    back = compare(hits(2.0, 2.1, 2.2), misses(1.0, 1.0, 1.0))
    assert back.ratio == 0.0 == back.low and back.p_value == 1 / 8


@pytest.mark.parametrize(("apart", "is_equal"), [(0.5e-9, True), (2e-9, False)])
def test_times_that_differ_by_less_than_any_clock_sees_have_no_spread(
    apart: float, is_equal: bool
) -> None:
    found = compare(hits(1.0, 1.0), hits(2.0, 2.0 * math.exp(apart)))
    assert ("no spread" in found.method) == is_equal
    assert found.ratio == pytest.approx(0.5)


def test_interval_that_no_number_holds_is_infinite() -> None:
    found = compare(hits(1e150, 1.0), hits(1e-150, 1.0))
    assert found.ratio == pytest.approx(math.exp(statistics.fmean([math.log(1e150) * 2, 0.0])))
    assert found.high == math.inf and found.low >= 0


def test_group_of_three_keeps_its_own_spread_however_wide_the_others_is() -> None:
    samples = [*hits(2.0, 18.0), *misses(19.9, 20.0, 20.1)]
    ours = expected_time_draws_s(samples)
    wide = math.sqrt((2 * 0.8**2 + 2 * 0.005**2) / 3)
    rng = np.random.default_rng(0)
    rate = np.concatenate([rng.beta(2, 4, 100_000), rng.beta(3, 3, 100_000)])
    hit_s = 10 * np.exp(wide / math.sqrt(2) * rng.standard_t(3, 200_000))
    miss_s = 20 * np.exp(0.005 / math.sqrt(3) * rng.standard_t(2, 200_000))
    drawn = hit_s + (1 - rate) / rate * miss_s
    for share in (0.25, 0.5, 0.75):
        assert np.quantile(ours, share) == pytest.approx(np.quantile(drawn, share), rel=0.05)
