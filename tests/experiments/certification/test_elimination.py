import importlib.util
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from tune_speed.core.stats import Sample
from tune_speed.experiments.certification.elimination import (
    Elimination,
    Pair,
    least_leader_rate,
    log_evidence,
    look,
)

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_certify.py"
JITTER = (1.0, 1.01, 0.99, 1.005, 0.995)
EQUAL_TIMES = {"leader_miss": 1.0, "rival_hit": 1.0, "rival_miss": 1.0}


def run(
    race: Elimination,
    times_s: Mapping[str, float],
    *,
    misses: Mapping[str, Sequence[int]] | None = None,
) -> Elimination:
    """Returns the race, run to its end; `misses` are the rounds, from 0, that a finalist missed."""
    for i in range(race.num_rounds):
        for shift, name in enumerate(race.alive):
            spent_s = times_s[name] * JITTER[(i + 2 * shift) % len(JITTER)]
            race.add(name, Sample(spent_s, i not in (misses or {}).get(name, ())))
        race.close_round()
    return race


def test_far_slower_finalist_goes_after_three_rounds_and_the_reason_has_figures() -> None:
    race = run(Elimination(["a", "b"]), {"a": 2.6, "b": 7.8})
    (dropped,) = race.dropped
    assert (dropped.name, dropped.round) == ("b", 3)
    assert dropped.reason.startswith("b is out after 3 runs: 7.77 s a run, ")
    assert "3 of 3 met the target, against 2.6 s, 3 of 3 of a; " in dropped.reason
    assert "even if a meets the target in only 50% of runs" in dropped.reason
    assert (race.alive, len(race.samples["a"]), len(race.samples["b"])) == (("a",), 5, 3)


def test_hits_alone_prove_too_little_to_drop_what_is_half_as_slow_again() -> None:
    assert run(Elimination(["a", "b"]), {"a": 1.0, "b": 1.5}).dropped == ()
    long = run(Elimination(["a", "b"], num_rounds=20), {"a": 1.0, "b": 1.5})
    assert [dropped.round for dropped in long.dropped] == [12]
    assert "so clear a lead had a chance of" in long.dropped[0].reason


def test_higher_least_rate_lets_it_go_soon() -> None:
    race = run(Elimination(["a", "b"], least_success_rate=0.75), {"a": 1.0, "b": 1.5})
    assert [dropped.round for dropped in race.dropped] == [3]


def test_leader_that_misses_more_than_the_least_rate_is_taken_at_its_word() -> None:
    pair = Pair(n=4, leader_hits=1, rival_hits=4, **EQUAL_TIMES)
    assert least_leader_rate(pair, 0.75) == 0.25
    assert least_leader_rate(pair._replace(leader_hits=4), 0.75) == 0.75


def test_three_hits_against_three_misses_are_no_proof() -> None:
    race = run(Elimination(["a", "b"], num_rounds=4), {"a": 1.0, "b": 1.0}, misses={"b": range(9)})
    assert race.dropped == ()
    assert race.order() == ("a", "b")


def test_nobody_is_dropped_before_the_third_or_after_the_last_round() -> None:
    assert run(Elimination(["a", "b"], num_rounds=3), {"a": 1.0, "b": 90.0}).dropped == ()


def test_order_is_by_expected_time_and_the_dropped_come_last() -> None:
    times_s = {"slow": 9.0, "unsure": 1.0, "sure": 1.2}
    race = run(Elimination(list(times_s)), times_s, misses={"unsure": [1, 3]})
    assert race.order() == ("sure", "unsure", "slow")


def test_single_finalist_runs_all_rounds() -> None:
    assert run(Elimination(["a"]), {"a": 1.0}).order() == ("a",)


def test_evidence_of_equal_times_is_the_likelihood_ratio_by_hand() -> None:
    # All hit, 1.6 times as slow: the rival is best at most if the leader's rate is 1 / 1.6, which
    # has r of r with chance 1.6^-r. Above it stand the guesses, 0.5 of which nearly hits always.
    pair = Pair(n=4, leader_hits=4, rival_hits=4, leader_miss=1.0, rival_hit=1.6, rival_miss=1.6)
    ratio = math.exp(log_evidence(pair)) / 1.6**4
    assert 0.5 < ratio < 0.65
    assert log_evidence(pair, least_success_rate=0.7) == math.inf


def test_evidence_of_hits_against_misses_at_equal_times_by_hand() -> None:
    # The likeliest equal rates of 4 of 4 and 0 of 4 are both one half.
    pair = Pair(n=4, leader_hits=4, rival_hits=0, **EQUAL_TIMES)
    assert math.exp(log_evidence(pair)) <= 2**8
    assert math.exp(log_evidence(pair)) >= 2**8 * 0.1


@settings(max_examples=60)
@given(st.floats(0.5, 1), st.floats(0.5, 1), st.integers(3, 8))
def test_evidence_averages_at_most_one_if_the_rival_is_the_best(
    leader_rate: float, rival_rate: float, n: int
) -> None:
    # What makes it safe to look often: by enumeration over both numbers of hits.
    slower = 0.999 * rival_rate / leader_rate
    leader_chances, rival_chances = (
        binom.pmf(range(n + 1), n, p) for p in (leader_rate, rival_rate)
    )
    mean = sum(
        leader_chances[k]
        * rival_chances[j]
        * math.exp(log_evidence(Pair(n, k, j, 1.0, slower, slower)))
        for k, j in itertools.product(range(n + 1), repeat=2)
        if leader_chances[k] * rival_chances[j] > 0
    )
    assert mean <= 1.001


def test_least_time_of_a_rival_is_the_t_intervals_end_by_hand() -> None:
    leader = [Sample(1.0, True)] * 3
    rival = [Sample(math.exp(x), True) for x in (0.9, 1.0, 1.1)]
    # Two degrees of freedom: the 5 % point is -2.919986; the standard error is 0.1 / sqrt(3).
    pair = look(leader, rival, tail=0.05)
    assert pair.rival_hit == pytest.approx(math.exp(1 - 2.919986 * 0.1 / math.sqrt(3)))
    assert (pair.leader_miss, pair.rival_miss) == (1.0, pair.rival_hit)


def test_equal_times_count_as_spread_by_a_thousandth() -> None:
    pair = look([Sample(1.0, True)] * 3, [Sample(2.0, True)] * 3, tail=0.05)
    assert pair.rival_hit == pytest.approx(2 * math.exp(-2.919986e-3 / math.sqrt(3)))


def test_with_a_time_limit_the_misses_of_a_rival_say_nothing_of_its_hits() -> None:
    leader, rival = [Sample(5.0, True)] * 3, [Sample(10.0, False)] * 3
    pair = look(leader, rival, tail=0.05, miss_s=10.0)
    assert (pair.rival_hit, pair.rival_miss, pair.leader_miss) == (0.0, 2.0, 2.0)
    assert look(leader, rival, tail=0.05).rival_hit == pytest.approx(2.0, rel=0.01)


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_replayed_runs_make_the_same_race(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times_s = dict(zip("abcd", rng.uniform(1, 4, 4).tolist(), strict=True))
    misses = {name: np.flatnonzero(rng.random(7) < 0.3).tolist() for name in times_s}
    first = run(Elimination(list(times_s), num_rounds=7), times_s, misses=misses)
    again = Elimination(list(times_s), num_rounds=7)
    for i in range(7):
        for name in again.alive:
            again.add(name, first.samples[name][i])
        again.close_round()
    assert (again.dropped, again.order()) == (first.dropped, first.order())


@pytest.fixture(scope="module")
def bench_certify() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_certify", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_interval_covers_and_the_textbooks_does_not(bench_certify: ModuleType) -> None:
    rng = np.random.default_rng(0)
    found = bench_certify.measure_coverage("fixed_length", 10, 0.1, 0.9, repetitions=100, rng=rng)
    assert found.ours >= 0.9 > found.textbook
    assert found.median >= 0.9


def test_true_best_survives_the_traps(bench_certify: ModuleType) -> None:
    rng = np.random.default_rng(0)
    trap = bench_certify.trap(2, 0.001, 2 / 3)
    assert bench_certify.measure_races(trap, 100, rng).best_dropped < 0.08
    far = bench_certify.measure_races(bench_certify.far(0.01, 0.9), 50, rng)
    assert far.best_dropped < 0.08 and far.saved > 0.1


def test_every_table_of_the_benchmark_is_printed(
    bench_certify: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_certify, "NUMS_OF_RUNS", (5, 10))
    monkeypatch.setattr(bench_certify, "SCENARIOS", bench_certify.SCENARIOS[:1])
    monkeypatch.setattr("sys.argv", ["bench_certify.py", "--repetitions", "1"])
    bench_certify.main()
    assert "true best dropped" in capsys.readouterr().out
