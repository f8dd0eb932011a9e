"""A training function's clock on a shared device, on a made-up clock: all figures by hand."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from helpers.custom.runs import Hand, make_own_spec, make_task

from tune_speed.core.records import Status
from tune_speed.custom.isolated_steps import AGAIN_S, FIRST_STEPS, IsolatedSteps, StepKind
from tune_speed.custom.run import OwnRun, StopTraining
from tune_speed.runtime.clock import Clock
from tune_speed.runtime.sharing import Sharing
from tune_speed.runtime.turnstile import PATIENCE_S, Measurement, Turnstile

STEP_S = 0.01
"""Of a step alone on the device; others make it four times as long."""
WAIT_S = 3.0
"""Until all are paused."""


class Reference:
    """A reference step that takes a thousandth of a second."""

    def __init__(self, hand: Hand) -> None:
        self._hand = hand
        self.times_s: list[float] = []

    def begin(self) -> None:
        self.times_s = []
        self.catch_up()

    def catch_up(self) -> None:
        self._hand.passes(0.001)
        self.times_s.append(0.001)


class SharedDevice(Turnstile):
    """A device on which all takes four times as long while nobody is paused."""

    def __init__(self, hand: Hand, *, has_turn: bool = True, is_isolated: bool = True) -> None:
        super().__init__(None, why_not=None)
        self.hand, self.factor, self.num_turns = hand, 4.0, 0
        self._has_turn, self._is_isolated = has_turn, is_isolated

    @contextmanager
    def measuring(self, *, patience_s: float) -> Iterator[Measurement | None]:
        self.num_turns += 1
        self.hand.passes(WAIT_S)
        self.factor, began_s = 1.0, self.hand.now_s
        turn = Measurement(began_s=math.inf, nobody_continued=lambda: self._is_isolated)
        turn.__class__ = type(
            "Turn",
            (Measurement,),
            {"left_s": property(lambda _: PATIENCE_S - (self.hand.now_s - began_s))},
        )
        yield turn if self._has_turn else None
        turn._at_end = (1.0, self._is_isolated)
        self.factor = 4.0


class Trained:
    """A run on such a device."""

    def __init__(self, *, task: dict[str, Any] | None = None, kind: str = "cpu", **shared: bool):
        self.hand = Hand()
        self.device = SharedDevice(self.hand, **shared)
        self.clock = Clock(synchronize=lambda: None, now=self.hand, turnstile=self.device)
        self.sharing = Sharing(label="own/t0000", turnstile=self.device, may_have_company=True)
        self.delayed_s, self.reports = 0.0, list[float]()
        self.run = self.opened(kind, **(task or {}))

    def opened(self, kind: str = "cpu", **task: Any) -> OwnRun:
        steps = IsolatedSteps(
            StepKind("key", "here", kind),
            clock=self.clock,
            sharing=self.sharing,
            reference=Reference(self.hand),  # type: ignore[arg-type]
            delayed_s=lambda: self.delayed_s,
        )
        return OwnRun(
            make_own_spec(workload=make_task(**{"max_train_s": 1e6, **task})),
            device=kind,
            clock=self.clock,
            place=self.sharing,
            on_report=lambda run: self.reports.append(run.evaluations[-1].train_s),
            interrupt=lambda: False,
            steps=steps,
        )

    def work(self, seconds: float) -> None:
        self.hand.passes(seconds * self.device.factor)

    def steps(self, *lengths_s: float) -> None:
        for length_s in lengths_s:
            self.work(length_s)
            self.run.step()


def evaluated(run: OwnRun) -> list[float]:
    return [evaluation.train_s for evaluation in run.evaluations]


def test_clock_is_steps_times_isolated_step_time() -> None:
    at = Trained()
    with at.run.timed():
        at.steps(0.5, 0.2, *[STEP_S] * 100)
        at.run.evaluated(step=102, metric=0.1)
    # The first two steps as they passed, four times as long: 2 s and 0.8 s.
    assert at.run.train_s == pytest.approx(2.8 + 100 * STEP_S)
    assert evaluated(at.run) == [at.run.train_s]
    window = at.sharing.windows[0]
    assert window.step_s == window.low_s == window.high_s == pytest.approx(STEP_S)
    assert (window.key, window.measured_in, window.reference_s) == ("key", "own/t0000", 0.001)
    # Of the 100 steps one began the turn and one was its first.
    assert window.num_steps == 30
    assert at.clock.elapsed("train_s") == pytest.approx(2.8 + 31 * STEP_S + 69 * 4 * STEP_S)


def test_waiting_for_the_turn_and_the_reference_are_off_the_clock() -> None:
    at = Trained()
    with at.run.timed():
        at.steps(*[STEP_S] * 100)
    # One reference step as the turn begins, one after its first step, and one after each block.
    assert at.clock.elapsed("measuring_s") == pytest.approx(WAIT_S + 0.001 * (2 + 30))


def test_earlier_evaluations_are_told_anew_and_the_clock_never_runs_backwards() -> None:
    at = Trained()
    with at.run.timed():
        for step in range(1, 200):
            at.steps(STEP_S)
            if step % 4 == 0:
                at.run.evaluated(step=step, metric=0.1)
    # Two first steps of 40 ms as they passed, the others 10 ms.
    truth = [0.08 + (step - FIRST_STEPS) * STEP_S for step in range(4, 200, 4)]
    assert evaluated(at.run) == pytest.approx(truth)
    assert at.reports[0] == pytest.approx(4 * 4 * STEP_S)
    assert at.reports[-1] == pytest.approx(truth[-1])
    # A turn ends with each evaluation: it had one step of its own, and two that could be timed.
    assert at.device.num_turns > 1


def test_what_is_no_step_counts_as_it_passed() -> None:
    at = Trained()
    with at.run.timed():
        at.steps(*[STEP_S] * 100)
        before_s = at.run.train_s
        at.hand.passes(0.7)  # Statistics of batch norms, say.
        with at.run.untimed():
            at.hand.passes(50.0)
        at.hand.passes(0.9)  # Workers start.
        at.steps(STEP_S, STEP_S)
    # 0.9 s and a step of 40 ms as they passed, then a step.
    assert at.run.train_s - before_s == pytest.approx(0.7 + 0.94 + STEP_S)
    with at.run.timed():
        at.hand.passes(5.0)
    assert at.run.train_s - before_s == pytest.approx(0.7 + 0.94 + STEP_S + 5.0)


def test_steps_that_a_gpu_has_queued_before_a_stop_do_not_count_twice() -> None:
    at = Trained(kind="cuda")
    with at.run.timed():
        at.steps(*[STEP_S] * 100)
        before_s = at.run.train_s
        at.hand.passes(0.7)
    assert at.run.train_s == before_s


def test_another_window_later_is_pooled_with_the_first() -> None:
    at = Trained()
    with at.run.timed():
        at.steps(*[STEP_S] * 100)
        at.steps(*[4 * STEP_S] * 1000)
    assert at.device.num_turns == len(at.sharing.windows) == 3
    first_s, second_s, third_s = (window.measured_at for window in at.sharing.windows)
    assert first_s <= second_s <= third_s
    # The mean of logarithms of 10 ms, 40 ms and 40 ms.
    step_s = (STEP_S * (4 * STEP_S) ** 2) ** (1 / 3)
    assert at.run.step_time is not None and at.run.step_time.num_windows == 3
    assert at.run.step_time.step_s == pytest.approx(step_s)
    assert at.run.train_s == pytest.approx(0.08 + 1098 * step_s)
    assert AGAIN_S == 30.0


def test_uneven_steps_have_an_interval_that_says_so() -> None:
    at = Trained()
    with at.run.timed():
        at.steps(*[0.01, 0.01, 0.01, 0.09] * 50)
    window = at.sharing.windows[0]
    # Blocks of a step each: mean 30 ms, standard deviation 35 ms, n = 33 or so.
    assert window.step_s == pytest.approx(0.03, rel=0.1)
    assert window.high_s - window.low_s == pytest.approx(2 * 2.04 * 0.035 / 33**0.5, rel=0.1)


@pytest.mark.parametrize("shared", [{"has_turn": False}, {"is_isolated": False}])
def test_clock_counts_what_passes_where_others_go_on(shared: dict[str, bool]) -> None:
    at = Trained(**shared)
    with at.run.timed():
        at.steps(*[STEP_S] * 200)
    assert at.run.step_time is None and at.sharing.windows == []
    assert at.run.train_s == at.clock.elapsed("train_s")
    assert at.device.num_turns == (1 if "has_turn" in shared else 3)


def test_long_steps_are_timed_over_several_turns_and_longer_ones_not_at_all() -> None:
    at = Trained()
    with at.run.timed():
        at.steps(*[0.2] * 30)
    assert at.sharing.windows[0].step_s == pytest.approx(0.2)
    other = Trained()
    with other.run.timed():
        other.steps(*[0.3] * 30)  # 1.2 s beside the others
    assert other.device.num_turns == 0


def test_window_in_which_its_thread_waited_for_a_core_says_so_and_is_repeated() -> None:
    at = Trained()
    with at.run.timed():
        for _ in range(300):
            at.steps(STEP_S)
            at.delayed_s += STEP_S * 0.5 * (not at.sharing.windows)
    first, second = at.sharing.windows
    assert "it waited" in first.disturbed and not second.disturbed
    assert at.run.step_time is not None and at.run.step_time.disturbed == ""


def test_limit_holds_by_the_isolated_clock() -> None:
    at = Trained(task={"max_train_s": 2.0})
    steps = 0
    with pytest.raises(StopTraining), at.run.timed():
        while True:
            steps += 1
            at.steps(STEP_S)
    # Two steps of 40 ms, then (2 - 0.08) / 0.01 = 192 of 10 ms, and the one that ends past it.
    assert steps in (194, 195)
    assert at.run.outcome is not None and at.run.outcome.status == Status.CAPPED


def test_turn_ends_with_the_run_whatever_it_left_running() -> None:
    at = Trained()
    left_open = at.run.timed()
    left_open.__enter__()
    at.steps(*[STEP_S] * 10)
    assert at.device.factor == 1.0
    at.run.close()
    assert at.device.factor == 4.0


def test_function_that_reports_its_own_clock_is_not_timed() -> None:
    at = Trained()
    with at.run.timed():
        at.steps(STEP_S)
        at.run.evaluated(step=1, metric=0.1, train_s=0.01)
        at.steps(*[STEP_S] * 100)
    assert at.device.num_turns == 0 and at.run.step_time is None


def test_another_process_continues_the_count() -> None:
    at = Trained()
    with at.run.timed():
        at.steps(*[STEP_S] * 100)
        at.run.evaluated(step=100, metric=0.1)
    assert at.run._steps is not None
    counted, clocks = at.run._steps.counted(), at.clock.clocks()
    other = Trained()
    other.clock.resume(clocks)
    assert other.run._steps is not None
    other.run._steps.resume(type(counted).model_validate_json(counted.model_dump_json()))
    other.run.evaluations = list(at.run.evaluations)
    with other.run.timed():
        other.steps(*[STEP_S] * 10)
    # The first two of the process as they passed.
    assert other.run.train_s == pytest.approx(at.run.train_s + 0.08 + 8 * STEP_S)


def test_window_has_the_power_of_its_turns() -> None:
    at = Trained()
    at.sharing.energy_j = lambda: 50.0 * at.hand.now_s
    with at.run.timed():
        at.steps(*[STEP_S] * 100)
    assert at.sharing.windows[0].power_w == pytest.approx(50.0)
