"""The clock on a made-up time, so that every second is accounted for by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pytest

from tune_speed.core.records import Clocks, StepTime
from tune_speed.runtime import heartbeat
from tune_speed.runtime.clock import (
    SPANS,
    Clock,
    Phase,
    Waits,
    fed_ratio,
    isolated_train_s,
    mean_power_w,
)
from tune_speed.runtime.turnstile import Turnstile


class FakeTime:
    """Seconds that pass only when a test says so."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.synchronized_at: list[float] = []

    def now(self) -> float:
        return self.seconds

    def synchronize(self) -> None:
        self.synchronized_at.append(self.seconds)


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def clock(time: FakeTime) -> Clock:
    return Clock(synchronize=time.synchronize, now=time.now)


def test_clock_excludes_evaluation(time: FakeTime, clock: Clock) -> None:
    for _ in range(2):
        with clock.span("train_s"):
            time.seconds += 3.0
        with clock.span("eval_s"):
            time.seconds += 10.0
    assert clock.clocks().train_s == 6.0
    assert clock.clocks().eval_s == 20.0


def test_wall_counts_the_time_between_spans(time: FakeTime, clock: Clock) -> None:
    with clock.span("setup_s"):
        time.seconds += 1.0
    time.seconds += 5.0
    assert clock.clocks().wall_s == 6.0
    assert clock.clocks().setup_s == 1.0


def test_device_is_synchronized_at_span_boundaries_only(time: FakeTime, clock: Clock) -> None:
    clock.start("train_s")
    for _ in range(100):
        time.seconds += 0.01
        clock.elapsed("train_s")
    clock.stop()
    assert time.synchronized_at == pytest.approx([100.0, 101.0])


def test_work_still_queued_on_the_device_is_counted(time: FakeTime) -> None:
    def wait_for_queue() -> None:
        time.seconds += 2.0

    clock = Clock(synchronize=wait_for_queue, now=time.now)
    with clock.span("train_s"):
        pass
    assert clock.clocks().train_s == 2.0


def test_span_that_raises_is_counted_and_ended(time: FakeTime, clock: Clock) -> None:
    with pytest.raises(ValueError), clock.span("train_s"):
        time.seconds += 4.0
        raise ValueError
    with clock.span("eval_s"):
        time.seconds += 1.0
    assert clock.clocks().train_s == 4.0


def test_elapsed_includes_the_running_span(time: FakeTime, clock: Clock) -> None:
    clock.start("train_s")
    time.seconds += 1.5
    assert clock.elapsed("train_s") == 1.5
    assert clock.elapsed("eval_s") == 0.0


def test_spans_do_not_nest(clock: Clock) -> None:
    clock.start("train_s")
    with pytest.raises(AssertionError, match="eval_s started while train_s runs"):
        clock.start("eval_s")


class FakeTurnstile(Turnstile):
    """Somebody measures before every step, for a second."""

    def __init__(self, time: FakeTime) -> None:
        super().__init__(None, why_not="made up")
        self.time, self.roles = time, list[str]()

    @contextmanager
    def training(self) -> Iterator[None]:
        self.roles.append("training")
        yield
        self.roles.append("left")

    @contextmanager
    def busy(self) -> Iterator[None]:
        self.roles.append("busy")
        yield
        self.roles.append("left")

    def must_wait(self) -> bool:
        return True

    def wait(self) -> float:
        self.time.seconds += 1.0
        self.waited_s += 1.0
        return 1.0


def test_waiting_for_others_is_not_training_time(time: FakeTime) -> None:
    clock = Clock(synchronize=time.synchronize, now=time.now, turnstile=FakeTurnstile(time))
    with clock.span("train_s"):
        for _ in range(3):
            clock.let_others_measure()
            time.seconds += 2.0
    clocks = clock.clocks()
    assert (clocks.train_s, clocks.waiting_s, clocks.wall_s) == (6.0, 3.0, 9.0)


def test_a_resumed_clock_goes_on_from_every_clock_of_the_other_process(time: FakeTime) -> None:
    earlier = Clocks(
        setup_s=1.0,
        compile_s=2.0,
        train_s=3.0,
        eval_s=4.0,
        measuring_s=5.0,
        waiting_s=6.0,
        wall_s=30.0,
    )
    clock = Clock(synchronize=time.synchronize, now=time.now, turnstile=FakeTurnstile(time))
    clock.resume(earlier)
    assert clock.clocks() == earlier
    with clock.span("train_s"):
        clock.let_others_measure()
        time.seconds += 2.0
    changed = {"train_s": 5.0, "waiting_s": 7.0, "wall_s": 33.0}
    assert clock.clocks() == earlier.model_copy(update=changed)


def test_the_device_is_synchronised_before_others_measure(time: FakeTime) -> None:
    clock = Clock(synchronize=time.synchronize, now=time.now, turnstile=FakeTurnstile(time))
    with clock.span("train_s"):
        time.seconds += 2.0
        clock.let_others_measure()
    assert time.synchronized_at == [100.0, 102.0, 103.0]


def test_setup_is_busy_training_and_evaluation_train_and_measuring_has_no_role(
    time: FakeTime,
) -> None:
    turnstile = FakeTurnstile(time)
    clock = Clock(synchronize=time.synchronize, now=time.now, turnstile=turnstile)
    for span in SPANS:
        with clock.span(span):
            turnstile.roles.append(span)
    assert turnstile.roles == [
        *("busy", "setup_s", "left", "busy", "compile_s", "left"),
        *("training", "train_s", "left", "training", "eval_s", "left", "measuring_s"),
    ]


def test_an_error_gives_the_role_back_and_keeps_the_seconds(time: FakeTime) -> None:
    turnstile = FakeTurnstile(time)
    clock = Clock(synchronize=time.synchronize, now=time.now, turnstile=turnstile)
    clock.start("train_s")
    time.seconds += 2.0
    clock.release()
    assert turnstile.roles == ["training", "left"]
    assert clock.clocks().train_s == 2.0


def test_power_is_that_of_the_training_spans_alone(time: FakeTime) -> None:
    """200 W in training, 50 W in evaluations, which do not count."""
    used_j = [0.0]
    clock = Clock(synchronize=time.synchronize, now=time.now, energy_j=lambda: used_j[0])
    assert clock.power_w is None
    for span, power_w in (("train_s", 180.0), ("eval_s", 50.0), ("train_s", 220.0)):
        with clock.span(span):  # type: ignore[arg-type]
            time.seconds += 4.0
            used_j[0] += 4.0 * power_w
    assert clock.power_w == pytest.approx(200.0)


def test_asking_for_the_energy_is_not_on_the_clock(time: FakeTime) -> None:
    def slow_j() -> float:
        time.seconds += 0.004
        return 0.0

    clock = Clock(synchronize=time.synchronize, now=time.now, energy_j=slow_j)
    for _ in range(3):
        with clock.span("train_s"):
            time.seconds += 1.0
    assert clock.clocks().train_s == pytest.approx(3.0, abs=1e-9)
    assert clock.clocks().wall_s == pytest.approx(3.024)


def test_span_whose_energy_is_not_known_counts_neither_in_joules_nor_in_seconds(
    time: FakeTime,
) -> None:
    readings = iter([0.0, 300.0, None, 900.0, 900.0, None])
    clock = Clock(synchronize=time.synchronize, now=time.now, energy_j=lambda: next(readings))
    for _ in range(3):
        with clock.span("train_s"):
            time.seconds += 3.0
    assert clock.power_w == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("began_j", "ended_j", "took_s"),
    [(None, 2.0, 1.0), (1.0, None, 1.0), (2.0, 1.0, 1.0), (1.0, 2.0, 0.2)],
)
def test_power_is_not_guessed(began_j: float | None, ended_j: float | None, took_s: float) -> None:
    assert mean_power_w(began_j, ended_j, took_s) is None
    assert mean_power_w(1.0, 2.0, 0.5) == 2.0


def test_look_whether_others_measure_is_a_sign_of_life() -> None:
    clock = Clock(synchronize=lambda: None)
    before = heartbeat.beats()
    with clock.span("train_s"):
        begun = heartbeat.beats()
        for _ in range(3):
            clock.let_others_measure()
        assert heartbeat.beats() == begun + 3
    assert begun >= before


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def batches(clock: FakeClock, *, count: int, each_s: float, end_s: float = 0.0) -> Iterator[int]:
    """Yields numbers, each of which takes its time, and so does the end."""
    for number in range(count):
        clock.now_s += each_s
        yield number
    clock.now_s += end_s


def test_only_the_time_in_next_is_counted() -> None:
    clock = FakeClock()
    waits = Waits(now=clock)
    for _ in waits.over(batches(clock, count=4, each_s=0.25)):
        clock.now_s += 1.0  # the step
    assert waits.waited_s == 1.0
    assert fed_ratio(waited_s=waits.waited_s, wall_s=clock.now_s) == 0.8


def test_waits_add_up_over_epochs_and_with_their_ends() -> None:
    clock = FakeClock()
    waits = Waits(now=clock)
    for _ in range(3):
        assert list(waits.over(batches(clock, count=2, each_s=1.0, end_s=0.5))) == [0, 1]
    assert waits.waited_s == 7.5


def test_batches_pass_in_order_and_no_sooner_than_they_are_asked_for() -> None:
    clock = FakeClock()
    wrapped = Waits(now=clock).over(batches(clock, count=9, each_s=1.0))
    assert list(islice(wrapped, 3)) == [0, 1, 2]
    assert clock.now_s == 3.0


def test_error_of_the_loader_passes_and_its_time_counts() -> None:
    clock = FakeClock()

    def failing() -> Iterator[int]:
        clock.now_s += 2.0
        raise OSError("disk")
        yield 0

    waits = Waits(now=clock)
    with pytest.raises(OSError, match="disk"):
        next(waits.over(failing()))
    assert waits.waited_s == 2.0


def test_no_time_has_no_ratio() -> None:
    assert fed_ratio(waited_s=0.0, wall_s=0.0) is None


def phase(step_s: float, *, samples: int, samples_per_step: int = 100) -> Phase:
    step_time = StepTime(
        key="k", step_s=step_s, low_s=step_s, high_s=step_s, num_steps=9, measured_in="s/t0000"
    )
    return Phase(step_time, samples_per_step, samples)


def test_training_takes_its_steps_times_the_isolated_seconds_of_one() -> None:
    # A ragged step counts by its samples.
    for samples, train_s in ((400, 2.0), (410, 2.05), (0, 0.0)):
        assert isolated_train_s([phase(0.5, samples=samples)]) == pytest.approx(train_s)
    small = phase(0.1, samples=1000, samples_per_step=200)
    assert isolated_train_s([small, phase(0.5, samples=400)], other_s=0.25) == pytest.approx(2.75)
