import pytest

from tune_speed.experiments.profiling.phases import PhaseTimer, StepsTaken, take_blocks


class Steps:
    """Steps of 2 s as they run, and of 3 s with borders, on a clock of their own."""

    def __init__(self, samples: tuple[int, ...] = (10,)) -> None:
        self.now_s, self.waited_s = 0.0, 0.0
        self.samples, self.kinds = samples, list[bool]()
        self.timer = PhaseTimer(synchronize=lambda: None, now=lambda: self.now_s)

    def take(self) -> int:
        samples = self.samples[len(self.kinds) % len(self.samples)]
        is_timed = self.timer.phase is not None
        self.kinds.append(is_timed)
        self.timer.enter("forward")
        self.now_s += (3.0 if is_timed else 2.0) * samples / 10
        self.waited_s += 0.5 * samples / 10
        return samples

    def blocks(self, num_steps: int, *, step_s: float = 2.0) -> StepsTaken:
        return take_blocks(
            self.take,
            self.timer,
            num_steps=num_steps,
            step_s=step_s,
            samples_per_step=10,
            synchronize=lambda: None,
            waited=lambda: self.waited_s,
            core_waited=lambda: 2 * self.waited_s,
            now=lambda: self.now_s,
        )


def test_steps_with_borders_and_without_are_told_apart() -> None:
    taken = Steps().blocks(20)
    assert (taken.step_s, taken.low_s, taken.high_s) == pytest.approx((2.0, 2.0, 2.0))
    assert taken.total_s["forward"] == taken.launched_s["forward"] == pytest.approx(3.0)
    assert (taken.waited_s, taken.core_wait_s) == pytest.approx((0.5, 1.0))


def test_kinds_take_turns_as_a_b_b_a() -> None:
    steps = Steps()
    assert steps.blocks(4).num_steps == 4
    assert steps.kinds == [False, True, True, False, False, True, True, False]


def test_so_many_steps_are_taken_and_fill_the_last_block() -> None:
    assert [Steps().blocks(count).num_steps for count in (1, 3, 20, 22)] == [1, 3, 20, 25]


def test_blocks_of_short_steps_have_more_of_them() -> None:
    steps = Steps()
    assert steps.blocks(40, step_s=0.0005).num_steps == 40
    assert steps.kinds == [False] * 20 + [True] * 40 + [False] * 20


def test_ragged_steps_count_by_their_samples() -> None:
    taken = Steps(samples=(10, 5)).blocks(20)
    assert taken.step_s == pytest.approx(2.0)
    assert taken.total_s["forward"] == pytest.approx(3.0)
