"""Time in `next()`, on a clock that moves only when told, and the training clock of phases."""

from collections.abc import Iterator
from itertools import islice

import pytest

from tune_speed.core.records import StepTime
from tune_speed.runtime.training_clock import Phase, Waits, fed_ratio, isolated_train_s


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
