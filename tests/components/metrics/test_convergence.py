import pytest
from making import make_evaluation, make_run

from tune_speed.components.metrics.base import Point, epochs_of_run, epochs_to_convergence


def curve(*accuracies: float) -> list[Point]:
    """Returns one evaluation an epoch, from epoch 0."""
    return [Point(float(epoch), accuracy) for epoch, accuracy in enumerate(accuracies)]


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ((0.1, 0.5, 0.7, 0.8, 0.801, 0.802, 0.80), 3.0),
        ((0.1, 0.5, 0.5, 0.5, 0.9, 0.9, 0.9, 0.9), 4.0),  # a plateau of 3 epochs, then a rise
        ((0.1, 0.5, 0.7, 0.8, 0.801), None),  # ended before 3 epochs more
        ((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7), None),  # still rising
        ((0.1, 0.1, 0.1, 0.1), 0.0),  # never learned
        ((0.5, 0.4, 0.3, 0.2), 0.0),  # a fall is no rise
        ((), None),
    ],
)
def test_convergence_is_the_first_epoch_without_a_rise_within_three_more(
    accuracies: tuple[float, ...], expected: float | None
) -> None:
    found = epochs_to_convergence(curve(*accuracies), least_rise=0.01, further_epochs=3.0)
    assert found == expected


def test_slow_rise_counts_once_it_adds_up() -> None:
    slow = curve(*(0.5 + 0.004 * epoch for epoch in range(8)))
    assert epochs_to_convergence(slow, least_rise=0.01, further_epochs=3.0) is None
    assert epochs_to_convergence(slow, least_rise=0.01, further_epochs=2.0) == 0.0


def test_epochs_without_an_evaluation_say_nothing() -> None:
    sparse = [Point(0.0, 0.5), Point(10.0, 0.5), Point(11.0, 0.9), Point(20.0, 0.9)]
    assert epochs_to_convergence(sparse, least_rise=0.01, further_epochs=5.0) is None


def test_run_converges_by_its_evaluations() -> None:
    steps = range(0, 80, 10)  # ten steps are an epoch
    points = [make_evaluation(step=s, accuracy=0.4 if s == 0 else 0.8) for s in steps]
    run = make_run().model_copy(update={"evaluations": tuple(points)})
    assert epochs_of_run(run) == 1.0
