import pytest

from tune_speed.core.records import StepTime
from tune_speed.runtime.training_clock import Phase, isolated_train_s


def phase(step_s: float, *, samples: int, samples_per_step: int = 100) -> Phase:
    step_time = StepTime(
        key="k", step_s=step_s, low_s=step_s, high_s=step_s, num_steps=9, measured_in="s/t0000"
    )
    return Phase(step_time, samples_per_step, samples)


def test_training_takes_its_steps_times_the_isolated_seconds_of_one() -> None:
    assert isolated_train_s([phase(0.5, samples=400)]) == pytest.approx(2.0)


def test_a_ragged_step_counts_by_its_samples() -> None:
    assert isolated_train_s([phase(0.5, samples=410)]) == pytest.approx(2.05)


def test_phases_of_other_shapes_and_other_spans_add_up() -> None:
    small = phase(0.1, samples=1000, samples_per_step=200)
    assert isolated_train_s([small, phase(0.5, samples=400)], other_s=0.25) == pytest.approx(2.75)


def test_a_run_that_took_no_step_took_no_time() -> None:
    assert isolated_train_s([phase(0.5, samples=0)]) == 0.0
