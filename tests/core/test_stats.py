import itertools
import math
import statistics
from random import Random

import numpy as np
import pytest
from helpers.making import make_record, make_run
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import t as student
from scipy.stats import wilcoxon

from tune_speed.core.records import Status
from tune_speed.core.significance import compare, holm, signed_rank_p_value
from tune_speed.core.stats import (
    NUM_DRAWS,
    RunStatistics,
    Sample,
    TimeInterval,
    central,
    deviation,
    expected_time_draws_s,
    expected_time_interval_s,
    expected_time_s,
    mean_interval,
    median_interval_s,
    median_time_s,
    ranked_s,
    sample_of,
    wilson_interval,
)
from tune_speed.core.text import Interval


def test_wilson_interval_of_8_of_10_is_the_textbooks() -> None:
    low, high = wilson_interval(8, 10)
    assert (low, high) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
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
    assert found.value == 3.0
    assert deviation([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.5**0.5)
    assert found.high == pytest.approx(3 + 2.7764 * (2.5 / 5) ** 0.5, abs=1e-4)


@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_interval_is_scipys(confidence: float) -> None:
    values = np.random.default_rng(0).normal(size=7)
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(confidence)
    found = mean_interval(values.tolist(), confidence=confidence)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_single_run_has_no_spread() -> None:
    assert (mean_interval([0.9]), deviation([0.9])) == (Interval(0.9), None)


def test_equal_runs_have_a_spread_of_zero() -> None:
    assert (mean_interval([0.5, 0.5]), deviation([0.5, 0.5])) == (Interval(0.5, 0.5, 0.5), 0.0)


def test_interval_of_times_never_reaches_below_0() -> None:
    """8 and 80 s: mean 44, deviation 50.9, t(0.975, 1) = 12.706; h / m is 10.4."""
    assert mean_interval([8.0, 80.0]).low == pytest.approx(44 - 12.706 * 36, rel=1e-3)
    found = mean_interval([8.0, 80.0], is_positive=True)
    assert found.value == 44.0
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
    assert found.value == 0.95 and found.low is not None and found.high is not None
    assert found.low == pytest.approx(1 / (1 + np.exp(-np.log(19) + reach)), rel=1e-3)
    assert 1 - found.high == pytest.approx(1 / (1 + np.exp(np.log(19) + reach)), rel=1e-3)


@pytest.mark.parametrize("values", [[0.0, 1.0], [1e-9, 0.0], [1.0, 1.0], [0.0, 0.0], [0.3, 0.3]])
def test_interval_of_any_shares_is_around_their_mean(values: list[float]) -> None:
    found = mean_interval(values, confidence=0.999, is_share=True)
    assert found.low is not None and found.high is not None
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_interval_of_shares_that_hardly_differ_is_students() -> None:
    shares = [0.91, 0.912, 0.909, 0.911, 0.91]
    found, plain = mean_interval(shares, is_share=True), mean_interval(shares)
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high), rel=1e-4)


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
