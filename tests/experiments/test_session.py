import itertools
from collections import Counter

import pytest
from helpers.making import make_record, make_run
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.core.records import Clocks, TrialRecord
from tune_speed.experiments.session import balanced_order, left_text, rounds, stoppable


@given(st.integers(1, 12))
def test_each_arm_has_each_place_in_a_block_twice(num_arms: int) -> None:
    arms = [f"arm {index}" for index in range(num_arms)]
    blocks = [balanced_order(arms, block=block) for block in range(2 * num_arms)]
    places = Counter((arm, place) for block in blocks for place, arm in enumerate(block))
    assert places == dict.fromkeys(itertools.product(arms, range(num_arms)), 2)


@given(st.integers(2, 12))
def test_each_arm_comes_right_after_each_other_twice(num_arms: int) -> None:
    arms = [f"arm {index}" for index in range(num_arms)]
    blocks = [balanced_order(arms, block=block) for block in range(2 * num_arms)]
    neighbours = Counter(pair for block in blocks for pair in itertools.pairwise(block))
    assert neighbours == dict.fromkeys(itertools.permutations(arms, 2), 2)


@given(st.integers(1, 12), st.integers(0, 30))
def test_after_each_pair_of_blocks_places_are_balanced(num_arms: int, pair: int) -> None:
    arms = [f"arm {index}" for index in range(num_arms)]
    first, second = (balanced_order(arms, block=2 * pair + half) for half in (0, 1))
    assert {first.index(arm) + second.index(arm) for arm in arms} == {num_arms - 1}


def test_two_arms_take_turns_in_who_begins_and_share_each_seed() -> None:
    runs = [(arm, seed) for _, seed, arm in rounds(("a", "b"), range(7, 11))]
    order = [("a", 7), ("b", 7), ("b", 8), ("a", 8), ("b", 9), ("a", 9), ("a", 10), ("b", 10)]
    assert runs == order


def taking(wall_s: float) -> TrialRecord:
    return make_record(runs=(make_run().model_copy(update={"clocks": Clocks(wall_s=wall_s)}),))


@pytest.mark.parametrize(
    ("num", "took_s", "text"),
    [
        (0, [60.0], "the last"),
        (3, [], "3 to go"),
        (3, [5.0], "3 to go"),
        (3, [30.0, 90.0], "3 to go, about 3 min"),
    ],
)
def test_what_is_left_is_told_in_runs_and_minutes(num: int, took_s: list[float], text: str) -> None:
    assert left_text(num, map(taking, took_s)) == text
    assert left_text(num, map(taking, took_s), most=True) in (text, f"at most {text}")


class Ended(Exception):
    pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, Ended])
def test_a_stop_ends_the_block_and_other_errors_pass(error: type[BaseException]) -> None:
    with stoppable(Ended) as stop:
        assert not stop.came()
        raise error
    assert stop.was_stopped
    with pytest.raises(ZeroDivisionError), stoppable(Ended):
        raise ZeroDivisionError
