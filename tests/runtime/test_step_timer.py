"""Steps timed on a made-up clock, so that every second is accounted for by hand."""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle, islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_speed.runtime import step_timer
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.step_timer import (
    BLOCK_S,
    LONGEST_S,
    MIN_BLOCKS,
    SHORTEST_S,
    Meters,
    Timed,
    isolated_time,
    take_all,
    time_steps,
    warm_up,
)
from tune_speed.runtime.turnstile import PATIENCE_S, TURN_S, Measurement, Turnstile


class Steps:
    """Steps of made-up lengths; a device that is as quick as the host."""

    def __init__(self, *lengths_s: float, samples: tuple[int, ...] = (32,)) -> None:
        self.seconds, self.num_taken = 0.0, 0
        self.lengths_s: Iterator[float] = cycle(lengths_s)
        self._samples = cycle(samples)

    def now(self) -> float:
        return self.seconds

    def take(self) -> int:
        self.seconds += next(self.lengths_s)
        self.num_taken += 1
        return next(self._samples)


def timed(
    steps: Steps,
    *,
    step_s: float,
    num_train: int = 10**6,
    limit_s: float = 1.0,
    period: int = 1,
    is_even: bool = True,
) -> Timed:
    kind = step_timer.Steps(steps.take, 32, num_train, BLOCK_S["cpu"], period, is_even)
    meters = Meters(synchronize=lambda: None, now=steps.now)
    return time_steps(kind, meters, step_s=step_s, limit_s=limit_s)


def test_even_steps_are_timed_for_the_shortest_time() -> None:
    steps = Steps(0.0201)
    assert timed(steps, step_s=0.02)[:4] == pytest.approx((0.0201, 0.0201, 0.0201, 15))
    assert SHORTEST_S <= steps.seconds < SHORTEST_S + 0.02


def test_long_even_steps_are_sure_after_six_blocks() -> None:
    assert timed(Steps(0.11), step_s=0.11).num_steps == MIN_BLOCKS


def test_short_steps_are_timed_many_in_a_block() -> None:
    steps = Steps(0.001)
    assert timed(steps, step_s=0.001).num_steps % 10 == 0


class Queue:
    """A device that is slower than the host, which launches a step's first kernel in 0.4 ms."""

    LAUNCH_S, STEP_S = 0.0004, 0.001

    def __init__(self) -> None:
        self.host_s = self.device_s = 0.0

    def now(self) -> float:
        return self.host_s

    def take(self) -> int:
        self.host_s += self.LAUNCH_S
        self.device_s = max(self.device_s, self.host_s) + self.STEP_S
        return 32

    def synchronize(self) -> None:
        self.host_s = max(self.host_s, self.device_s)


def test_waiting_for_a_gpu_makes_its_steps_less_than_a_percent_slower() -> None:
    queue = Queue()
    found = time_steps(
        step_timer.Steps(queue.take, 32, 10**6, BLOCK_S["cuda"]),
        Meters(synchronize=queue.synchronize, now=queue.now),
        step_s=Queue.STEP_S,
        limit_s=1.0,
    )
    # A run waits once, at its end: its steps take what the device takes.
    assert found.step_s == pytest.approx(Queue.STEP_S, rel=0.01)
    assert found.num_steps >= MIN_BLOCKS * 100


def test_a_few_steps_that_were_held_up_are_ignored() -> None:
    steps = Steps(*[0.02] * 6, 0.5)
    assert timed(steps, step_s=0.02, limit_s=10).step_s == pytest.approx(0.02)


def test_uneven_steps_are_timed_until_the_limit_and_not_beyond() -> None:
    steps = Steps(0.02, 0.05)
    found = timed(steps, step_s=0.02)
    assert LONGEST_S - 0.1 < steps.seconds <= LONGEST_S
    assert found.step_s == pytest.approx(0.035, rel=0.05)
    assert found.low_s < 0.035 < found.high_s


def test_no_block_begins_that_would_not_end_in_time() -> None:
    steps = Steps(0.4)
    assert timed(steps, step_s=0.4, limit_s=0.9).num_steps == 2
    assert steps.seconds == pytest.approx(0.8)


def test_a_step_longer_than_the_limit_is_timed_once() -> None:
    assert timed(Steps(3.0), step_s=3.0).num_steps == 1


def test_a_short_epoch_is_a_block_with_its_ragged_step() -> None:
    # 3 steps of 32 and one of 4 samples: 100 in all, in 0.030 s.
    steps = Steps(0.009, 0.009, 0.009, 0.003, samples=(32, 32, 32, 4))
    found = timed(steps, step_s=0.009, num_train=100)
    assert found.step_s == pytest.approx(32 * 0.030 / 100)
    assert found.num_steps % 4 == 0


def test_a_ragged_step_counts_by_its_samples_where_epochs_are_long() -> None:
    steps = Steps(0.02, 0.02, 0.01, samples=(32, 32, 16))
    assert timed(steps, step_s=0.02, num_train=10**6).step_s == pytest.approx(0.02)


NOISE = 0.02
Shape = tuple[int, int]
Times = np.ndarray[Shape, np.dtype[np.float64]]


def stochastic_depth(chance: np.random.Generator, shape: Shape, *, survivals: list[float]) -> Times:
    """A fifth of a step's mean time for stem and head, the rest for the blocks that are drawn."""
    drawn = sum(chance.random(shape) < survival for survival in survivals)
    return 0.2 + 0.8 * drawn / sum(survivals)


def ema(chance: np.random.Generator, shape: Shape, *, every: int) -> Times:
    """An update that costs half a step, from any step on."""
    number = np.arange(shape[1]) + chance.integers(every, size=(shape[0], 1))
    return np.where(number % every == 0, 1.5, 1.0) / (1 + 0.5 / every)


def skewed(chance: np.random.Generator, shape: Shape, *, spread: float) -> Times:
    """As of selective backprop and meProp: the same operations, on other indices each time."""
    return chance.gamma(spread**-2, spread**2, shape)


# Few long steps fit into the time, which makes their mean 0.8 % too long: more repeats, to tell.
@pytest.mark.parametrize(("step_s", "repeats"), [(0.003, 1000), (0.02, 1000), (0.08, 4000)])
@pytest.mark.parametrize(
    ("times", "period"),
    [
        pytest.param(partial(stochastic_depth, survivals=[0.5] * 9), 1, id="uniform depth"),
        pytest.param(
            partial(stochastic_depth, survivals=[1 - n / 18 for n in range(1, 10)]),
            1,
            id="linear depth",
        ),
        pytest.param(partial(ema, every=5), 5, id="ema"),
        pytest.param(partial(ema, every=10), 10, id="rare ema"),
        pytest.param(partial(ema, every=20), 20, id="rarer ema"),
        pytest.param(partial(skewed, spread=0.05), 1, id="selective backprop"),
        pytest.param(partial(skewed, spread=0.15), 1, id="meprop"),
    ],
)
def test_the_interval_covers_the_mean_of_unequal_steps(
    times: Callable[..., Times], period: int, step_s: float, repeats: int
) -> None:
    """The mean is `step_s` by construction, and what a long run divides its time by."""
    chance = np.random.default_rng(0)
    shape = (repeats, math.ceil(3 * LONGEST_S / step_s))
    noise = chance.lognormal(-(NOISE**2) / 2, NOISE, shape)
    lengths_s = (step_s * times(chance, shape) * noise).tolist()
    is_even = times.func is not stochastic_depth  # type: ignore[attr-defined]
    settings = {"period": period, "is_even": is_even, "limit_s": 4.0}
    found = [timed(Steps(*each), step_s=step_s, **settings) for each in lengths_s]
    hits = sum(each.low_s <= step_s <= each.high_s for each in found)
    assert 0.93 <= hits / repeats <= 0.97
    assert statistics.fmean(each.step_s for each in found) == pytest.approx(step_s, rel=0.01)


@pytest.mark.parametrize("survival", [0.05, 0.1, 0.2])
def test_the_interval_covers_the_mean_where_few_blocks_survive(survival: float) -> None:
    chance = np.random.default_rng(0)
    times = stochastic_depth(chance, (1000, 150), survivals=[survival] * 9)
    found = [timed(Steps(*each), step_s=0.02, is_even=False) for each in (0.02 * times).tolist()]
    hits = sum(each.low_s <= 0.02 <= each.high_s for each in found)
    assert 0.92 <= hits / 1000 <= 0.98
    # Windows end early where the first blocks happen to be alike.
    assert statistics.fmean(each.step_s for each in found) == pytest.approx(0.02, rel=0.05)


def test_a_period_that_does_not_fit_into_the_time_is_not_waited_for() -> None:
    steps = Steps(*[0.02] * 99, 0.04)
    assert timed(steps, step_s=0.02, period=100).num_steps == 15


def test_blocks_of_short_epochs_span_a_period_of_steps() -> None:
    # Epochs of 4 steps; one step in three costs more.
    steps = Steps(0.005, 0.002, 0.002)
    found = timed(steps, step_s=0.003, num_train=4 * 32, period=3)
    assert (found.low_s, found.step_s, found.high_s) == pytest.approx((0.003,) * 3)


@given(st.lists(st.floats(0.001, 0.1), min_size=1, max_size=20))
def test_the_mean_lies_within_its_interval(lengths: list[float]) -> None:
    found = timed(Steps(*lengths), step_s=lengths[0])
    assert found.low_s <= found.step_s * (1 + 1e-9)
    assert found.step_s <= found.high_s * (1 + 1e-9)
    assert math.isfinite(found.step_s)


def isolated(
    steps: Steps,
    turnstile: Turnstile,
    synchronize: Callable[[], None] = lambda: None,
    on_note: Callable[[str], None] = lambda note: None,
    **more: Any,
) -> Timed | None:
    return isolated_time(
        step_timer.Steps(steps.take, 32, 10**6, BLOCK_S["cpu"]),
        Meters(synchronize=synchronize, now=steps.now, **more),
        clock=Clock(synchronize=synchronize, now=steps.now),
        turnstile=turnstile,
        on_note=on_note,
    )


def test_nothing_is_measured_without_a_turnstile() -> None:
    nobody = Turnstile(None, why_not="no flock")
    assert isolated(Steps(0.02), nobody) is None


def test_steps_are_measured_in_a_turn(tmp_path: object) -> None:
    from pathlib import Path

    with Turnstile.open("device", folder=Path(str(tmp_path))) as turnstile:
        found = isolated(Steps(0.02), turnstile)
    assert found is not None
    assert found.step_s == pytest.approx(0.02)


def test_a_measurement_ends_before_others_continue() -> None:
    class Late(Turnstile):
        @contextmanager
        def measuring(
            self, *, patience_s: float, needs_s: float = TURN_S
        ) -> Iterator[Measurement | None]:
            began_s = time.monotonic() - PATIENCE_S + 0.2
            yield Measurement(began_s=began_s, nobody_continued=lambda: True)

    found = isolated(steps := Steps(0.02), Late(None, why_not=None), lambda: None)
    assert found is not None and steps.num_taken > found.num_steps
    # One more step makes ready what was evicted meanwhile.
    assert 0.02 * (found.num_steps + 1) < 0.2


@pytest.mark.parametrize(("ago_s", "left_s"), [(-1.0, 1.0), (0.0, 0.0), (5.0, 0.0)])
def test_a_turn_that_lasted_too_long_is_not_isolated(ago_s: float, left_s: float) -> None:
    began_s = time.monotonic() - PATIENCE_S - ago_s
    turn = Measurement(began_s=began_s, nobody_continued=lambda: True)
    assert turn.left_s == pytest.approx(left_s, abs=0.1)
    assert turn.is_isolated == (left_s > 0)


class Shared(Turnstile):
    """A device on which steps take four times as long while nobody is paused."""

    def __init__(self, steps: Steps, *, has_turn: bool = True, is_isolated: bool = True) -> None:
        super().__init__(None, why_not=None)
        self._steps, self._has_turn, self._is_isolated = steps, has_turn, is_isolated

    @contextmanager
    def measuring(
        self, *, patience_s: float, needs_s: float = TURN_S
    ) -> Iterator[Measurement | None]:
        self._steps.seconds += 3.0  # until all are paused
        self._steps.lengths_s = quicker = (length / 4 for length in self._steps.lengths_s)
        turn = Measurement(began_s=math.inf, nobody_continued=lambda: self._is_isolated)
        yield turn if self._has_turn else None
        turn.end()
        self._steps.lengths_s = (4 * length for length in quicker)


class MadeUpTurn(Measurement):
    def __init__(self, steps: Steps, lasts_s: float) -> None:
        super().__init__(began_s=0.0, nobody_continued=lambda: True)
        self._steps, self._until_s = steps, steps.seconds + lasts_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._until_s - self._steps.seconds)

    @property
    def is_isolated(self) -> bool:
        return self.left_s > 0


class Patient(Turnstile):
    """A device on which all others are paused for so long [s] a turn."""

    def __init__(self, steps: Steps, *lasts_s: float) -> None:
        super().__init__(None, why_not=None)
        self._steps, self._lasts_s = steps, iter(lasts_s)
        self.needed_s: list[float] = []

    @contextmanager
    def measuring(
        self, *, patience_s: float, needs_s: float = TURN_S
    ) -> Iterator[Measurement | None]:
        self.needed_s.append(needs_s)
        lasts_s = next(self._lasts_s, None)
        yield None if lasts_s is None else MadeUpTurn(self._steps, lasts_s)


def timed_long(
    step_s: float, *lasts_s: float, delayed_frac: float = 0.0
) -> tuple[Timed | None, list[float], str, int]:
    """Returns the time of steps, what was announced for a turn, the note, and how many there were.

    Steps of the warm-up take twice as long, since nobody was paused.
    """
    steps, notes = Steps(2 * step_s, 2 * step_s, *[step_s] * 9), list[str]()
    turnstile = Patient(steps, *lasts_s)
    delayed = {"delayed_s": lambda: delayed_frac * steps.seconds}
    found = isolated(steps, turnstile, on_note=notes.append, **delayed)
    return found, turnstile.needed_s, "; ".join(notes), steps.num_taken


@pytest.mark.parametrize(
    ("step_s", "lasts_s", "needed_s", "num_steps"),
    [
        (0.3, (1.1,), [1.2], 3),
        (0.7, (2.0,), [2.8], 2),
        (3.0, (8.0,), [5.0], 2),
        (3.0, (4.0, 4.0), [5.0] * 2, 2),
        (3.0, (4.0, 1.0, 4.0), [5.0] * 2, 0),
        (5.0, (6.0, 11.0), [5.0] * 2, 2),
    ],
)
def test_long_steps_are_timed_in_a_turn_or_in_several(
    step_s: float, lasts_s: tuple[float, ...], needed_s: list[float], num_steps: int
) -> None:
    found, needs_s, note, num_taken = timed_long(step_s, *lasts_s)
    assert needs_s == pytest.approx(needed_s)
    assert (found is None) == (num_steps == 0) == bool(note)
    if found is not None:
        assert found.step_s == pytest.approx(step_s) and found.num_steps == num_steps
        assert num_taken >= 2 + num_steps


def test_steps_that_no_turn_is_long_enough_for_are_tried_once_and_said() -> None:
    found, needs_s, note, num_taken = timed_long(12.0, 9.0, 9.0)
    assert (found, needs_s, num_taken) == (None, [5.0], 3)
    assert note.startswith("a step takes 12.0 s, too long to time it while co-tenants pause")
    assert note.endswith("10 s at most (search.longest_pause)")


def test_steps_that_are_far_too_long_are_not_tried() -> None:
    found, needs_s, note, num_taken = timed_long(21.0, 9.0)
    assert (found, needs_s, num_taken) == (None, [], 2) and "a step takes 42.0 s" in note


def test_single_steps_among_strangers_are_disturbed_as_the_worst_of_them() -> None:
    found = timed_long(3.0, 4.0, 4.0, 4.0, delayed_frac=0.5)[0]
    assert found is not None and found.num_steps == 2
    assert found.disturbed == "it waited 50% of the time for a core"
    assert found.step_s == pytest.approx(1.5), "what it waited for a core is no time of a step"


@pytest.mark.parametrize("num_steps", [1, 2, 30, 1000])
@pytest.mark.parametrize("step_s", [0.04, 0.002])
def test_steps_before_the_first_count_by_their_isolated_time(num_steps: int, step_s: float) -> None:
    steps = Steps(2.0, *[step_s] * 2000)
    clock = Clock(synchronize=lambda: None, now=steps.now)
    with clock.span("train_s"):
        taken = iter(steps.take, None)
        ahead_s = take_all(
            taken, num_steps, block_s=BLOCK_S["cpu"], clock=clock, turnstile=Shared(steps)
        )
    assert steps.num_taken == num_steps
    truth_s = (2.0 + (num_steps - 1) * step_s) / 4
    assert clock.elapsed("train_s") - ahead_s == pytest.approx(truth_s)
    assert clock.elapsed("measuring_s") == pytest.approx(3.0)
    is_long = truth_s > LONGEST_S + 0.5
    assert (ahead_s > 0) == is_long
    assert clock.elapsed("train_s") <= 4 * truth_s


@pytest.mark.parametrize("num_steps", [30, 1000])
def test_steps_that_end_early_count_as_many_as_there_were(num_steps: int) -> None:
    steps = Steps(0.04)
    clock = Clock(synchronize=lambda: None, now=steps.now)
    with clock.span("train_s"):
        taken = islice(iter(steps.take, None), num_steps)
        ahead_s = take_all(
            taken, num_steps + 100, block_s=0.01, clock=clock, turnstile=Shared(steps)
        )
    assert steps.num_taken == num_steps
    assert clock.elapsed("train_s") - ahead_s == pytest.approx(num_steps * 0.01)


@pytest.mark.parametrize("shared", [{"has_turn": False}, {"is_isolated": False}])
def test_steps_before_the_first_count_as_they_pass_where_others_go_on(shared) -> None:
    steps = Steps(0.04)
    clock = Clock(synchronize=lambda: None, now=steps.now)
    with clock.span("train_s"):
        turnstile = Shared(steps, **shared)
        taken = iter(steps.take, None)
        assert take_all(taken, 500, block_s=0.01, clock=clock, turnstile=turnstile) == 0.0
    assert steps.num_taken == 500


def test_window_of_isolated_steps_has_their_power_unless_it_is_disturbed() -> None:
    """A device that takes 300 W."""
    for delayed_frac, power_w in ((0.0, 300.0), (0.5, None)):
        steps = Steps(0.02)
        found = isolated(
            steps,
            Shared(steps),
            delayed_s=lambda steps=steps, frac=delayed_frac: frac * steps.seconds,
            energy_j=lambda steps=steps: 300.0 * steps.seconds,
        )
        assert found is not None and bool(found.disturbed) == (power_w is None)
        assert found.power_w == (power_w and pytest.approx(power_w))


@pytest.mark.parametrize(
    ("limit_s", "taken"), [(0.0, 2), (0.5, 2), (0.75, 2), (0.8, 3), (1.0, 3), (1.01, 4)]
)
def test_warming_up_begins_no_step_that_would_end_past_its_limit(
    limit_s: float, taken: int
) -> None:
    steps, waits = Steps(0.25), list[int]()
    last_s = warm_up(
        steps.take, limit_s=limit_s, synchronize=lambda: waits.append(1), now=steps.now
    )
    assert (steps.num_taken, len(waits), last_s) == (taken, taken, 0.25)


def test_timing_ends_after_a_second_however_much_time_there_is() -> None:
    # After three, a fourth would end at the second itself.
    assert timed(Steps(0.25), step_s=0.25, limit_s=9.0)[:4] == (0.25, 0.25, 0.25, 3)


def test_block_is_one_step_unless_a_period_is_given() -> None:
    def steps_of_a_block(period: int) -> float:
        steps, waits = Steps(0.02), list[int]()
        kind = step_timer.Steps(steps.take, 32, 10**6, 0.01, period)
        meters = Meters(synchronize=lambda: waits.append(1), now=steps.now)
        time_steps(kind, meters, step_s=0.02, limit_s=9.0)
        return steps.num_taken / (len(waits) - 1)

    assert [steps_of_a_block(period) for period in (1, 2)] == [1, 2]


@pytest.mark.parametrize(("num_isolated", "is_timed"), [(0, True), (2, True), (3, False)])
def test_measurement_that_did_not_stay_isolated_is_repeated_twice_at_most(
    num_isolated: int, is_timed: bool
) -> None:
    turns: list[float] = []

    class Crowded(Turnstile):
        """A turnstile at which the first turns are disturbed."""

        @contextmanager
        def measuring(self, *, patience_s: float, needs_s: float = TURN_S) -> Iterator[Any]:
            turns.append(patience_s)
            yield SimpleNamespace(left_s=0.9, is_isolated=len(turns) > num_isolated)

    found = isolated(Steps(0.01), Crowded(None, why_not=None))
    assert (found is not None) == is_timed
    assert turns == [10.0] * min(num_isolated + 1, 3)
