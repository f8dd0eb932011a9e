"""Turns on several devices at once; each rank is a thread, its locks are real."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tune_speed.runtime.turnstile import Turnstile
from tune_speed.training.ranks import JointClock, JointTurn, JointTurnstile, Ranks

Found = TypeVar("Found")
WAIT_S = 20.0


class Threads(Ranks):
    """A rank of several in one process."""

    LATE_S = 0.0
    """Every word between them takes so long [s]."""

    def __init__(self, rank: int, said: list[Any], barrier: threading.Barrier) -> None:
        super().__init__(rank, len(said))
        self._said, self._barrier = said, barrier

    def gather(self, value: Found) -> list[Found]:
        time.sleep(self.LATE_S)
        self._said[self.rank] = value
        self._barrier.wait(WAIT_S)
        said = list(self._said)
        self._barrier.wait(WAIT_S)
        return said

    def broadcast(self, value: Found) -> Found:
        return self.gather(value)[0]


def on_each(size: int, call: Callable[[Ranks], Found]) -> list[Found]:
    """Returns what all ranks get."""
    said, barrier = [None] * size, threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        ranks = (Threads(rank, said, barrier) for rank in range(size))
        return list(pool.map(call, ranks))


def take_turn(
    folder: Path, keys: list[str], look: Callable[[JointTurn], Found], *, patience_s: float = 5.0
) -> list[Found | None]:
    """Returns what each rank sees in its turn, or None for those that get none."""

    def call(ranks: Ranks) -> Found | None:
        key = keys[ranks.rank]
        with ExitStack() as stack:
            own = Turnstile(None, why_not="Another holds it.")
            if keys.index(key) == ranks.rank:
                own = stack.enter_context(Turnstile.open(key, folder=folder))
            together = JointTurnstile(ranks, own, device_key=key)
            with together.measuring(patience_s=patience_s, needs_s=0.5) as turn:
                return None if turn is None else look(turn)

    return on_each(len(keys), call)


def can_measure(folder: Path, key: str) -> bool:
    with (
        Turnstile.open(key, folder=folder) as turnstile,
        turnstile.measuring(patience_s=0) as turn,
    ):
        return turn is not None


@pytest.mark.parametrize("keys", [["a", "b"], ["b", "a"], ["a", "a"], ["b", "a", "b"]])
def test_all_devices_are_held_together_each_once(tmp_path: Path, keys: list[str]) -> None:
    def look(turn: JointTurn) -> tuple[bool, bool, float]:
        is_free = any(can_measure(tmp_path, key) for key in keys)
        return turn.is_isolated, is_free, turn.left_s

    first, *others = take_turn(tmp_path, keys, look)
    assert first is not None and first[:2] == (True, False) and 9.0 < first[2] <= 10.0
    assert all(other == first for other in others)
    assert all(can_measure(tmp_path, key) for key in keys)


@pytest.mark.parametrize("taken", ["a", "b"])
def test_all_give_up_where_one_device_is_not_to_be_had(tmp_path: Path, taken: str) -> None:
    with Turnstile.open(taken, folder=tmp_path) as other, other.busy():
        found = take_turn(tmp_path, ["a", "b"], lambda turn: True, patience_s=0.3)
    assert found == [None, None]
    assert can_measure(tmp_path, "a") and can_measure(tmp_path, "b")


def test_a_turn_is_isolated_only_where_it_is_on_all_devices(tmp_path: Path) -> None:
    def look(turn: JointTurn) -> tuple[bool, float]:
        with Turnstile.open("b", folder=tmp_path) as impatient:
            impatient._continue_regardless(time.monotonic())
            return turn.is_isolated, turn.left_s

    found = take_turn(tmp_path, ["a", "b"], look)
    assert [each and each[0] for each in found] == [False, False]


def test_trials_whose_ranks_stand_the_other_way_round_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Threads, "LATE_S", 0.2)

    def both(keys: list[str]) -> list[bool | None]:
        return take_turn(tmp_path, keys, lambda turn: turn.is_isolated)

    began_s = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(both, [["a", "b"], ["b", "a"]]))
    assert found == [[True, True]] * 2 and time.monotonic() - began_s < 4.0


def test_the_clock_is_the_firsts_when_all_have_come(tmp_path: Path) -> None:
    def look(ranks: Ranks) -> tuple[float, ...]:
        clock, times = JointClock(ranks), list[float]()
        for late_s in (0.0, 0.2, 0.0):
            time.sleep(late_s * ranks.rank)
            times.append(clock.now())
        return tuple(times)

    first, other = on_each(2, look)
    assert first == other
    began_s, late_s, end_s = first
    assert 0.2 <= late_s - began_s < 0.4 and 0 <= end_s - late_s < 0.1
