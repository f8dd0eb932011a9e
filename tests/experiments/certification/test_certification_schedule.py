import math
import statistics
from collections.abc import Callable
from typing import Literal

import pytest
from helpers.making import make_run
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from tune_speed.core.records import RunResult, Status
from tune_speed.core.stats import sample_of
from tune_speed.core.targets import Target
from tune_speed.experiments.certification.assemble import _gains, _minus_ln
from tune_speed.experiments.certification.schedule import (
    FIRST_FRESH_SEED,
    CertificationSchedule,
    Turn,
)
from tune_speed.study.settings import CertifyConfig

Times = Callable[[Turn], float | None]


PLAN = CertifyConfig(seeds=3, final=2, final_seeds=4)


def make_contest(
    *names: str, leader: str | None = None, plan: CertifyConfig = PLAN, seed_base: str = "s"
) -> CertificationSchedule:
    return CertificationSchedule(names, leader=leader, plan=plan, seed_base=seed_base, miss_s=None)


def run_for(turn: Turn, time_s: float | None) -> RunResult:
    if time_s is None:
        return make_run(Status.MISSED, time_s=5.0, seed=turn.seed)
    return make_run(time_s=time_s, seed=turn.seed)


def play(contest: CertificationSchedule, times: Times) -> CertificationSchedule:
    while (turn := contest.next()) is not None:
        contest.add(turn, run_for(turn, times(turn)))
    return contest


def speeds(**seconds: float) -> Times:
    return lambda turn: seconds[turn.name] * (1 + 0.01 * turn.round)


def test_finalists_take_turns_and_the_leader_is_among_them() -> None:
    contest = play(make_contest("a", "b", leader="l"), speeds(a=1.0, b=1.1, l=1.2))
    first = [turn.name for turn in contest.turns if turn.stage == "first"]
    assert first == ["l", "a", "b"] * 3


def test_all_of_a_round_share_a_seed_and_no_two_rounds_do() -> None:
    contest = play(make_contest("a", "b"), speeds(a=1.0, b=1.1))
    by_round = {(t.stage, t.round): {t.seed for t in contest.turns} for t in contest.turns}
    seeds = {(t.stage, t.round, t.seed) for t in contest.turns}
    assert len(seeds) == len(by_round) == 3 + 4
    assert len({seed for *_, seed in seeds}) == 7


def test_seeds_are_none_that_a_search_uses() -> None:
    contest = play(make_contest("a"), speeds(a=1.0))
    assert all(FIRST_FRESH_SEED <= turn.seed < 2**32 for turn in contest.turns)


def test_another_certification_has_other_seeds() -> None:
    one, two = (play(make_contest("a", seed_base=b), speeds(a=1.0)) for b in ("s/1", "s/2"))
    assert {t.seed for t in one.turns}.isdisjoint(t.seed for t in two.turns)


def test_the_best_of_the_first_stage_and_the_leader_run_the_final() -> None:
    contest = play(make_contest("a", "b", "c", leader="l"), speeds(a=1.3, b=1.0, c=1.1, l=1.4))
    final = [turn.name for turn in contest.turns if turn.stage == "final"]
    assert final == ["l", "b", "c"] * 4


def test_certified_figures_of_a_finalist_come_from_the_final_alone() -> None:
    contest = play(make_contest("a", "b", "c"), speeds(a=1.3, b=1.0, c=1.1))
    ranks = {placed.name: placed for placed in contest.ranks()}
    assert [ranks[n].stage for n in "abc"] == ["first", "final", "final"]
    assert [len(ranks[n].runs) for n in "abc"] == [3, 4, 4]
    for placed in ranks.values():
        assert all(contest.turns[order].name == placed.name for order in placed.orders)
        assert [contest.turns[order].seed for order in placed.orders] == [
            run.seed for run in placed.runs
        ]


def test_without_a_final_the_first_stage_counts() -> None:
    contest = play(
        make_contest("a", "b", plan=CertifyConfig(seeds=3, final=0, final_seeds=4)),
        speeds(a=1.3, b=1.0),
    )
    assert [(p.name, p.stage, len(p.runs)) for p in contest.ranks()] == [
        ("b", "first", 3),
        ("a", "first", 3),
    ]


def test_who_is_clearly_out_runs_no_more_and_it_is_said_why() -> None:
    plan = CertifyConfig(seeds=5, final=2, final_seeds=4)
    contest = play(make_contest("a", "b", "slow", plan=plan), speeds(a=1.0, b=1.1, slow=9.0))
    slow = next(placed for placed in contest.ranks() if placed.name == "slow")
    assert len(slow.runs) < 5
    assert slow.dropped is not None and "slow is out" in slow.dropped.reason


def test_finalists_are_compared_with_the_leader_pair_by_pair() -> None:
    def times(turn: Turn) -> float:
        noise = [0.02, -0.01, 0.03, -0.02][turn.round]
        return {"a": 1.0, "l": 1.2}[turn.name] * (1 + (noise if turn.name == "a" else -noise))

    contest = play(
        make_contest("a", leader="l", plan=CertifyConfig(seeds=3, final=1, final_seeds=4)), times
    )
    placed = next(p for p in contest.ranks() if p.name == "a")
    ours, theirs = ([1.02, 0.99, 1.03, 0.98], [1.2 * f for f in (0.98, 1.01, 0.97, 1.02)])
    expected = ttest_rel([math.log(t) for t in ours], [math.log(t) for t in theirs])
    assert placed.rival == "l"
    assert placed.comparison is not None
    assert placed.comparison.p_value == pytest.approx(expected.pvalue / 2, rel=1e-6)


def test_p_values_are_corrected_for_the_number_of_finalists() -> None:
    def times(turn: Turn) -> float:
        wobble = 1 + 0.02 * ((turn.seed >> ord(turn.name[0]) % 8) % 3)
        return {"a": 1.0, "b": 1.05, "l": 1.1}[turn.name] * wobble

    contest = play(
        make_contest("a", "b", leader="l", plan=CertifyConfig(seeds=3, final=2, final_seeds=6)),
        times,
    )
    compared = [p for p in contest.ranks() if p.name != "l"]
    raw = [p.comparison.p_value for p in compared if p.comparison]
    smallest = min(range(2), key=raw.__getitem__)
    assert compared[smallest].adjusted_p_value == pytest.approx(min(1.0, 2 * raw[smallest]))


def test_the_leader_is_compared_with_the_best_of_the_others() -> None:
    contest = play(make_contest("a", "b", leader="l"), speeds(a=1.3, b=1.1, l=1.0))
    leader = next(placed for placed in contest.ranks() if placed.name == "l")
    assert (leader.rival, leader.adjusted_p_value) == ("b", None)


def test_a_contest_of_one_has_nobody_to_compare_with() -> None:
    (placed,) = play(make_contest("a"), speeds(a=1.0)).ranks()
    assert (placed.rival, placed.comparison, placed.dropped) == (None, None, None)


@given(
    cut=st.integers(0, 40),
    seconds=st.lists(st.floats(0.5, 4.0), min_size=3, max_size=3),
    missing=st.sets(st.integers(0, 40)),
)
def test_a_contest_replayed_from_its_runs_goes_on_the_same(
    cut: int, seconds: list[float], missing: set[int]
) -> None:
    def times(turn: Turn) -> float | None:
        number = turn.round * 7 + ord(turn.name)
        return None if number % 41 in missing else seconds["abc".index(turn.name)]

    whole = play(make_contest("a", "b", "c"), times)
    again = make_contest("a", "b", "c")
    for turn in whole.turns[:cut]:
        again.add(turn, run_for(turn, times(turn)))
    assert play(again, times).turns == whole.turns
    assert again.ranks() == whole.ranks()


@given(st.sets(st.integers(0, 40)))
def test_the_number_of_runs_left_is_never_too_low(missing: set[int]) -> None:
    contest, left = make_contest("a", "b", "c", leader="l"), []
    while (turn := contest.next()) is not None:
        left.append(contest.most_runs_left)
        is_miss = len(contest.turns) in missing
        contest.add(turn, run_for(turn, None if is_miss else 1.0 + ord(turn.name) % 5))
    num_runs = len(contest.turns)
    assert all(most >= num_runs - done for done, most in enumerate(left))
    assert contest.most_runs_left == 0


def test_a_run_that_failed_at_once_is_a_miss_that_cost_something() -> None:
    run = make_run(Status.FAILED, time_s=0.5).model_copy(update={"clocks": make_run().clocks})
    failed = run.model_copy(
        update={"clocks": run.clocks.model_copy(update={"train_s": 0.0}), "time_to_target_s": None}
    )
    assert sample_of(failed).spent_s > 0
    assert not sample_of(failed).is_hit


BEST = Target(value=0.001, within_s=9.0)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_best_metric_within_a_time_is_compared_by_its_paired_differences(
    mode: Literal["max", "min"],
) -> None:
    target = BEST.model_copy(update={"mode": mode})
    plan = CertifyConfig(seeds=3, final=2, final_seeds=6)
    contest = CertificationSchedule(
        ("a", "b"), leader=None, plan=plan, seed_base="s", miss_s=None, target=target
    )
    ends = {
        "a": [0.90, 0.91, 0.92, 0.90, 0.93, 0.91],
        "b": [0.94, 0.90, 0.95, 0.93, 0.94, 0.93],
    }
    while (turn := contest.next()) is not None:
        time_s = 1.0 if turn.name == "a" else 8.0  # Which is no reason to drop it.
        run = make_run(accuracy=ends[turn.name][turn.round], time_s=time_s, seed=turn.seed)
        contest.add(turn, run)
    first, second = contest.ranks()
    best, other = ("b", "a") if mode == "max" else ("a", "b")
    assert (first.name, second.name) == (best, other)
    assert first.dropped is second.dropped is None and first.comparison is not None
    sign = 1.0 if mode == "max" else -1.0
    alternative = "greater" if mode == "max" else "less"
    known = ttest_rel(ends[best], ends[other], alternative=alternative)
    assert first.comparison.p_value == pytest.approx(known.pvalue, rel=1e-6)
    gain = sign * statistics.fmean(x - y for x, y in zip(ends[best], ends[other], strict=True))
    assert first.comparison.ratio == pytest.approx(math.exp(-gain))
    told = _gains("metric_gain", first.comparison, _minus_ln)
    interval = ttest_rel(ends[best], ends[other]).confidence_interval()
    known_ends = sorted((sign * interval.low, sign * interval.high))
    assert told["metric_gain"] == pytest.approx(gain)
    assert [told["metric_gain_low"], told["metric_gain_high"]] == pytest.approx(known_ends)


def test_a_run_past_the_time_is_worse_than_any_that_ended_in_it() -> None:
    plan = CertifyConfig(seeds=4, final=0)
    contest = CertificationSchedule(
        ("a", "b"), leader=None, plan=plan, seed_base="s", miss_s=None, target=BEST
    )
    while (turn := contest.next()) is not None:
        is_late = turn.name == "a" and turn.round > 0
        status = Status.CAPPED if is_late else Status.REACHED
        end = 0.99 if turn.name == "a" else 0.5
        contest.add(turn, make_run(status, accuracy=end, seed=turn.seed))
    assert [rank.name for rank in contest.ranks()] == ["b", "a"]
