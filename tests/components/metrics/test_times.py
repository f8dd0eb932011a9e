import pytest
from making import make_evaluation, make_run

from tune_speed.components.metrics import METRICS
from tune_speed.components.metrics.base import OF_RUN, epoch_s
from tune_speed.core.records import Clocks, RunResult, Status


def run_of(epochs: float) -> RunResult:
    """Returns a run of 12 s of training out of 20 s."""
    evaluation = make_evaluation().model_copy(update={"epoch": epochs})
    clocks = Clocks(train_s=12.0, eval_s=3.0, wall_s=20.0)
    return make_run().model_copy(update={"evaluations": (evaluation,), "clocks": clocks})


def test_epoch_is_training_time_over_passes_which_need_not_be_whole() -> None:
    assert epoch_s(run_of(2.5)) == pytest.approx(4.8)


def test_run_without_a_step_has_no_epoch_time() -> None:
    assert epoch_s(run_of(0.0)) is None
    assert epoch_s(make_run().model_copy(update={"evaluations": ()})) is None


def test_execution_is_all_of_the_run_and_training_a_part_of_it() -> None:
    assert OF_RUN["execution_s"](run_of(1.0)) == 20.0
    assert OF_RUN["train_s"](run_of(1.0)) == 12.0


def test_miss_has_no_time_to_target() -> None:
    time_to_target_s = METRICS["time_to_target_s"].of_run
    assert time_to_target_s is not None
    assert time_to_target_s(make_run(time_s=3.0)) == 3.0
    assert time_to_target_s(make_run(Status.MISSED)) is None


def test_amortised_time_leaves_out_what_the_first_weights_took() -> None:
    pretrained = make_run(time_s=3.0).model_copy(update={"init_s": 1.25})
    assert OF_RUN["amortised_time_to_target_s"](pretrained) == 1.75
    assert OF_RUN["amortised_time_to_target_s"](make_run(time_s=3.0)) is None
    assert (
        OF_RUN["amortised_time_to_target_s"](
            make_run(Status.MISSED).model_copy(update={"init_s": 1.0})
        )
        is None
    )
