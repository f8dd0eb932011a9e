import itertools
import math
import statistics
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import wilcoxon

from tune_speed.core.significance import compare, holm, signed_rank_p_value
from tune_speed.core.stats import (
    NUM_DRAWS,
    RunStatistics,
    Sample,
    expected_time_draws_s,
    expected_time_interval_s,
    expected_time_s,
    mean_interval,
    median_interval_s,
    median_time_s,
    wilson_interval,
)


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


def hit(spent_s: float) -> Sample:
    return Sample(spent_s, True)


def miss(spent_s: float) -> Sample:
    return Sample(spent_s, False)


SAMPLES = st.lists(st.builds(Sample, st.floats(0.01, 1e4), st.booleans()), min_size=1, max_size=25)
PAIRS = st.lists(
    st.tuples(*[st.builds(Sample, st.floats(0.01, 1e4), st.booleans())] * 2),
    min_size=1,
    max_size=15,
)


def test_mean_of_the_hits_leaves_misses_out() -> None:
    assert RunStatistics((hit(2.0), miss(9.0), hit(4.0))).mean_hit_s == 3.0
    assert RunStatistics((miss(9.0),)).mean_hit_s is None


def test_statistics_of_runs_are_those_of_their_samples() -> None:
    samples = (hit(2.0), miss(3.0), hit(4.0), hit(1.0), hit(2.5), hit(2.0))
    found = RunStatistics(samples, miss_s=9.0, confidence=0.9)
    times_s = [2.0, None, 4.0, 1.0, 2.5, 2.0]
    assert (found.n, found.hits, found.spent_s, list(found.times_s)) == (6, 5, 14.5, times_s)
    assert (found.median_s, found.expected_s) == (2.25, 2.9)
    low, high, confidence = median_interval_s(times_s, confidence=0.9)
    middle = found.median_interval
    assert (middle.low_s, middle.high_s, middle.confidence) == (low, None, confidence)
    assert high == math.inf
    ends = expected_time_interval_s(samples, confidence=0.9, miss_s=9.0)
    assert (found.expected_interval.low_s, found.expected_interval.high_s) == ends
    rate = found.success_rate
    assert (rate.low, rate.high) == wilson_interval(5, 6, confidence=0.9)


def test_statistics_of_no_runs_and_of_misses_have_no_finite_time() -> None:
    assert RunStatistics(()).median_s is None
    assert RunStatistics(()).expected_s == math.inf
    missed = RunStatistics((miss(3.0),))
    assert (missed.hits, missed.median_s, missed.expected_s) == (0, None, math.inf)
    assert missed.expected_interval.high_s is None


def test_expected_time_is_all_time_over_hits() -> None:
    assert expected_time_s([hit(2.0), miss(3.0), hit(4.0)]) == 4.5
    assert expected_time_s([miss(3.0)]) == math.inf


@given(SAMPLES)
def test_expected_time_is_a_hit_and_the_misses_before_it(samples: list[Sample]) -> None:
    hits = [sample.spent_s for sample in samples if sample.is_hit]
    misses = [sample.spent_s for sample in samples if not sample.is_hit]
    assume(hits and misses)
    odds = len(misses) / len(hits)
    expected = statistics.fmean(hits) + odds * statistics.fmean(misses)
    assert expected_time_s(samples) == pytest.approx(expected)


@given(SAMPLES, st.floats(0.01, 1e4))
def test_one_more_miss_never_makes_the_expected_time_shorter(
    samples: list[Sample], spent_s: float
) -> None:
    assert expected_time_s([*samples, miss(spent_s)]) >= expected_time_s(samples)


def test_interval_where_no_run_missed_allows_for_misses() -> None:
    runs = [hit(time_s) for time_s in (1.0, 1.1, 0.9, 1.0, 1.0)]
    assert expected_time_interval_s(runs)[1] > 1.8


def test_expected_time_interval_of_equal_runs_is_the_success_rates() -> None:
    # Without a spread, time is 1 / rate: half of the draws have Beta(3, 3), half Beta(4, 2), whose
    # distribution functions are the sums of binomial chances below.
    low, high = expected_time_interval_s([hit(1.0)] * 3 + [miss(1.0)] * 2)

    def at_least(hits: int, rate: float) -> float:
        return sum(math.comb(5, k) * rate**k * (1 - rate) ** (5 - k) for k in range(hits, 6))

    def below(rate: float) -> float:
        return (at_least(3, rate) + at_least(4, rate)) / 2

    assert below(1 / high) == pytest.approx(0.025, abs=5e-4)
    assert below(1 / low) == pytest.approx(0.975, abs=5e-4)


def test_expected_time_interval_of_all_hits_starts_at_the_5_percent_point_of_their_mean() -> None:
    times_s = [10.0, 10.1, 9.9, 10.2, 9.8]
    # Half of the draws have no miss; Student's t with 4 degrees of freedom is 2.132 at 95 %.
    expected = 10.0 - 2.132 * statistics.stdev(times_s) / math.sqrt(5)
    assert expected_time_interval_s([hit(s) for s in times_s])[0] == pytest.approx(
        expected, abs=0.02
    )


@settings(max_examples=40)
@given(SAMPLES)
def test_draws_are_times_of_one_number(samples: list[Sample]) -> None:
    draws = expected_time_draws_s(samples)
    assert draws.shape == (NUM_DRAWS,)
    assert (draws >= 0).all()  # So none is NaN.


def test_half_of_the_draws_of_hits_alone_know_no_miss_and_lie_around_the_mean() -> None:
    draws = expected_time_draws_s([hit(10.0), hit(10.1), hit(9.9), hit(10.2), hit(9.8)], miss_s=1e9)
    unmissed = draws[draws < 100]
    assert len(unmissed) == pytest.approx(NUM_DRAWS / 2, abs=5)
    # Student's t with 4 degrees of freedom has mean 0 and variance 2; s / √5 is 0.0707.
    assert unmissed.mean() == pytest.approx(10.0, abs=0.01)
    assert unmissed.std() == pytest.approx(0.1, rel=0.1)


def test_an_unseen_miss_costs_what_the_caller_says() -> None:
    runs = [hit(time_s) for time_s in (1.0, 1.1, 0.9, 1.0, 1.0)]
    cheap, dear = (expected_time_interval_s(runs, miss_s=miss_s)[1] for miss_s in (1.0, 10.0))
    assert (dear - 1) / (cheap - 1) == pytest.approx(10.0, rel=0.1)


def test_runs_that_tell_nothing_have_an_interval_without_ends() -> None:
    assert expected_time_interval_s([hit(1.0)]) == (0.0, math.inf)
    assert expected_time_interval_s([hit(1.0), miss(1.0)]) == (0.0, math.inf)


def test_without_a_hit_the_expected_time_has_a_low_end_only() -> None:
    low, high = expected_time_interval_s([miss(1.0)] * 5)
    # The rate's 97.5 % point: half of the draws are 0, so the 95 % point of Beta(1, 5).
    assert low == pytest.approx(1 / (1 - 0.05 ** (1 / 5)) - 1, rel=0.01)
    assert high == math.inf


@settings(max_examples=40)
@given(SAMPLES)
def test_intervals_contain_the_estimate_and_know_no_order(samples: list[Sample]) -> None:
    low, high = expected_time_interval_s(samples)
    assert 0 <= low <= expected_time_s(samples) <= high
    assert expected_time_interval_s(samples[::-1]) == (low, high)


@settings(max_examples=40)
@given(SAMPLES)
def test_more_confidence_never_means_a_shorter_interval(samples: list[Sample]) -> None:
    narrow, wide = (expected_time_interval_s(samples, confidence=c) for c in (0.5, 0.95))
    assert wide[0] <= narrow[0] and narrow[1] <= wide[1]


def test_median_interval_of_five_is_the_range_and_says_so() -> None:
    assert median_interval_s([3.0, 1.0, 2.0, 5.0, 4.0]) == (1.0, 5.0, 0.9375)
    assert median_interval_s([3.0, 1.0, None, 5.0, 4.0]) == (1.0, math.inf, 0.9375)
    assert median_interval_s([3.0]) == (3.0, 3.0, 0.0)


def test_median_interval_of_ten_leaves_one_out_on_each_side() -> None:
    # Textbook: with n = 10, from the 2nd to the 9th, 1 - 2 * 11 / 1024 = 97.9 %.
    low, high, confidence = median_interval_s([float(time) for time in range(1, 11)])
    assert (low, high) == (2.0, 9.0)
    assert confidence == pytest.approx(1 - 22 / 1024)


@given(st.lists(st.none() | st.floats(0.01, 1e4), min_size=6, max_size=60))
def test_median_interval_holds_the_median_and_its_confidence(times: list[float | None]) -> None:
    low, high, confidence = median_interval_s(times)
    median = median_time_s(times)
    assert low <= (math.inf if median is None else median) <= high
    assert 0.95 <= confidence < 0.993


def test_paired_comparison_is_students_by_hand() -> None:
    # Log ratios ln 0.9, ln 0.8, ln 0.85: mean -0.163676, SD 0.058908, t = -4.81251; with two
    # degrees of freedom P(T < t) = (1 + t / sqrt(2 + t^2)) / 2, and the 97.5 % point is 4.302653.
    a, b = [hit(9.0), hit(16.0), hit(25.5)], [hit(10.0), hit(20.0), hit(30.0)]
    found = compare(a, b)
    mean, error = -0.1636763, 0.0589097 / math.sqrt(3)
    t = mean / error
    assert found.ratio == pytest.approx(math.exp(mean), rel=1e-5)
    assert found.p_value == pytest.approx((1 + t / math.sqrt(2 + t * t)) / 2, rel=1e-3)
    ends = [math.exp(mean + sign * 4.302653 * error) for sign in (-1, 1)]
    assert (found.low, found.high) == pytest.approx(ends, rel=1e-4)
    assert (found.num_pairs, "t-test" in found.method) == (3, True)


def test_equal_times_prove_nothing_and_divide_by_nothing() -> None:
    found = compare([hit(2.0)] * 5, [hit(2.0)] * 5)
    assert (found.ratio, found.low, found.high, found.p_value) == (1.0, 1.0, 1.0, 1.0)


def test_a_lead_without_any_spread_is_as_sure_as_its_signs() -> None:
    found = compare([hit(1.0)] * 5, [hit(2.0)] * 5)
    assert found.ratio == pytest.approx(0.5)
    assert found.p_value == 2**-5
    assert compare([hit(1.0)], [hit(2.0)])[1:4] == (0.0, math.inf, 0.5)


def test_a_miss_is_slower_than_any_hit() -> None:
    # Differences -inf, -0.7, +0.1: positive ranks sum to 1; of 8 signings 2 have a sum up to 1.
    a = [hit(1.0), hit(1.0), hit(1.1)]
    found = compare(a, [miss(3.0), hit(2.0), hit(1.0)])
    assert found.p_value == 2 / 8
    assert found.ratio == pytest.approx(3.1 / 3 / 3.0)


def test_recipes_that_never_hit_have_no_ratio() -> None:
    found = compare([miss(1.0)] * 3, [miss(2.0)] * 3)
    assert (found.ratio, found.p_value) == (None, 1.0)
    assert (found.low, found.high) == (0.0, math.inf)  # Nothing is known of it.
    assert compare([miss(1.0)] * 3, [hit(2.0)] * 3).ratio == math.inf


@settings(max_examples=40)
@given(PAIRS)
def test_comparison_contains_its_ratio_and_knows_no_order(pairs: list[tuple]) -> None:
    a, b = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = compare(a, b)
    assert 0 < found.p_value <= 1
    assert found.ratio is None or found.low <= found.ratio * (1 + 1e-9)
    assert found.ratio is None or found.ratio <= found.high * (1 + 1e-9)
    again = compare(a[::-1], b[::-1])
    assert (again.ratio is None) == (found.ratio is None)
    assert again[1:5] == pytest.approx(found[1:5], rel=1e-6)


@given(st.lists(st.integers(-6, 6).map(float), min_size=1, max_size=9))
def test_signed_rank_test_counts_every_signing(differences: list[float]) -> None:
    kept = [abs(d) for d in differences if d]
    ranks = [sum(k < d for k in kept) + (sum(k == d for k in kept) + 1) / 2 for d in kept]
    signed = [d for d in differences if d]
    seen = sum(rank for rank, d in zip(ranks, signed, strict=True) if d > 0)
    sums = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign)
        for signs in itertools.product([0, 1], repeat=len(ranks))
    ]
    expected = sum(total <= seen for total in sums) / len(sums)
    assert signed_rank_p_value(differences) == pytest.approx(expected)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=20, unique=True), st.randoms())
def test_signed_rank_test_without_ties_is_scipys(sizes: list[int], random: Random) -> None:
    differences = [size * random.choice([-1.0, 1.0]) for size in sizes]
    expected = wilcoxon(differences, alternative="less", method="exact").pvalue
    assert signed_rank_p_value(differences) == pytest.approx(expected)


def test_holm_adjusts_as_the_textbook_does() -> None:
    # 4 * 0.01, 3 * 0.02, then 2 * 0.03 and 1 * 0.04, neither below the one before.
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_lies_between_raw_and_bonferroni(p_values: list[float]) -> None:
    for p_value, adjusted in zip(p_values, holm(p_values), strict=True):
        assert p_value <= adjusted <= min(1.0, len(p_values) * p_value)


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
