import pytest
from helpers.making import make_evaluation, make_run

from tune_speed.components.metrics import METRICS
from tune_speed.core.records import Evaluation, RunResult


def run_with(*evaluations: Evaluation) -> RunResult:
    return make_run().model_copy(update={"evaluations": evaluations})


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("accuracy", "accuracy"),
        ("macro_f1", "macro_f1"),
        ("micro_f1", "micro_f1"),
        ("loss", "loss"),
        ("train_loss", "train_loss"),
    ],
)
def test_score_is_that_of_the_last_evaluation(name: str, field: str) -> None:
    first, last = (make_evaluation(accuracy=accuracy) for accuracy in (0.2, 0.7))
    last = last.model_copy(update={"micro_f1": 0.7, "train_loss": 0.3})
    of_run = METRICS[name].of_run
    assert of_run is not None
    assert of_run(run_with(first, last)) == getattr(last, field)
    assert of_run(run_with()) is None


def test_record_from_before_micro_f1_has_none() -> None:
    stored = make_evaluation().model_dump(exclude={"micro_f1"})
    assert Evaluation.model_validate(stored).micro_f1 is None
