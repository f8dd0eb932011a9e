"""What a training function is handed: its clock, its limits, what it may report."""

import math

import pytest
from helpers.custom.runs import Hand, make_own_spec, make_run, make_task

from tune_speed.core.records import Status
from tune_speed.core.targets import Target
from tune_speed.custom.run import BadReport, OwnRun, StopTraining


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def run(hand: Hand) -> OwnRun:
    return make_run(hand)


def trained(run: OwnRun, hand: Hand, seconds: float) -> None:
    with run.timed():
        hand.passes(seconds)


def test_clock_counts_training_alone(hand: Hand, run: OwnRun) -> None:
    hand.passes(5)
    with run.timed():
        hand.passes(2)
        with run.untimed():
            hand.passes(10)
            with run.timed():
                hand.passes(1)
        hand.passes(4)
    hand.passes(20)
    run.close()
    clocks = run._clock.clocks()
    assert (clocks.setup_s, clocks.train_s, clocks.eval_s) == (5, 7, 30)
    assert clocks.wall_s == 42


def test_clock_stands_still_while_an_evaluation_is_reported(hand: Hand) -> None:
    run = make_run(hand, on_report=lambda run: hand.passes(7))
    with run.timed():
        hand.passes(1)
        run.evaluated(step=1, metric=0.1)
        hand.passes(1)
    assert run.train_s == 2
    assert run.evaluations[0].train_s == 1


def test_anytime_target_is_met_at_the_first_of_two_evaluations(hand: Hand, run: OwnRun) -> None:
    with pytest.raises(StopTraining), run.timed():
        for step, metric in enumerate([0.5, 0.92, 0.7, 0.91, 0.95, 0.99], start=1):
            hand.passes(1)
            run.evaluated(step=step, metric=metric)
    assert run.outcome is not None
    assert run.outcome.status == Status.REACHED
    assert run.outcome.time_to_target_s == 4
    assert len(run.evaluations) == 5


def test_fixed_length_target_must_hold_at_the_end() -> None:
    for last, status, time_s in ((0.95, Status.REACHED, 3.0), (0.5, Status.MISSED, None)):
        hand = Hand()
        run = make_run(hand, make_own_spec(workload=make_task(mode="fixed_length")))
        with run.timed():
            for step, metric in enumerate([0.99, 0.99, last], start=1):
                hand.passes(1)
                run.evaluated(step=step, metric=metric)
        run.returned()
        assert run.outcome is not None
        assert (run.outcome.status, run.outcome.time_to_target_s) == (status, time_s)


def test_less_is_better_where_the_target_says_so(hand: Hand) -> None:
    target = Target(metric="log_loss", value=0.3, mode="min")
    run = make_run(hand, make_own_spec(workload=make_task(target=target)))
    with pytest.raises(StopTraining), run.timed():
        for step, metric in enumerate([0.9, 0.3, 0.25, 0.1], start=1):
            hand.passes(1)
            run.evaluated(step=step, metric=metric)
    assert run.outcome is not None and run.outcome.time_to_target_s == 2
    assert run.evaluations[1].values == {"log_loss": 0.3}
    assert "log_loss 0.2500 ≤ 0.3" in str(run.outcome.reason)


@pytest.mark.parametrize("metric", [math.nan, math.inf, -math.inf])
def test_metric_that_is_not_finite_is_never_a_score(metric: float, hand: Hand, run: OwnRun) -> None:
    with pytest.raises(StopTraining), run.timed():
        hand.passes(1)
        run.evaluated(step=1, metric=0.99)
        run.evaluated(step=2, metric=metric)
    assert run.outcome is not None and run.outcome.status == Status.DIVERGED
    assert [evaluation.step for evaluation in run.evaluations] == [1]
    with pytest.raises(StopTraining):
        run.evaluated(step=3, metric=0.99)


def test_clock_that_runs_backwards_is_an_error(hand: Hand, run: OwnRun) -> None:
    hand.passes(30)
    run.evaluated(step=1, metric=0.1, train_s=5.0)
    with pytest.raises(BadReport, match=r"train_s must not run backwards, but got 4 after 5"):
        run.evaluated(step=2, metric=0.95, train_s=4.0)
    assert run.outcome is not None and run.outcome.status == Status.FAILED
    with pytest.raises(StopTraining):  # A handler of its own makes no difference.
        run.evaluated(step=3, metric=0.95, train_s=6.0)


def test_clock_that_runs_ahead_of_the_time_is_an_error(hand: Hand, run: OwnRun) -> None:
    hand.passes(3)
    with pytest.raises(BadReport, match=r"train_s must be at most what has passed, 3.000 s"):
        run.evaluated(step=1, metric=0.1, train_s=3.5)


def test_clock_is_reported_always_or_never(hand: Hand, run: OwnRun) -> None:
    hand.passes(30)
    run.evaluated(step=1, metric=0.1, train_s=5.0)
    with pytest.raises(BadReport, match="at each evaluation, or at none"):
        run.evaluated(step=2, metric=0.1)


@pytest.mark.parametrize("step", [-1, 1.5, True, "2", 5, 3])
def test_steps_are_whole_numbers_that_rise(step: object, hand: Hand, run: OwnRun) -> None:
    trained(run, hand, 1)
    run.evaluated(step=5, metric=0.1)
    with pytest.raises(BadReport, match="step must be"):
        run.evaluated(step=step, metric=0.1)  # type: ignore[arg-type]


def test_training_off_the_clock_is_an_error(hand: Hand, run: OwnRun) -> None:
    hand.passes(10)
    with pytest.raises(BadReport, match=r"run\.timed\(\) has counted no time"):
        run.evaluated(step=10, metric=0.99)


def test_target_that_is_met_before_training_is_an_error(hand: Hand, run: OwnRun) -> None:
    with pytest.raises(BadReport, match="must not be met before training"):
        run.evaluated(step=0, metric=0.99)


def test_function_that_never_evaluates_has_failed(hand: Hand, run: OwnRun) -> None:
    trained(run, hand, 1)
    run.returned()
    assert run.outcome is not None and run.outcome.status == Status.FAILED
    assert "my_train must call run.evaluated" in str(run.outcome.reason)


def test_limit_holds_at_the_step_where_steps_are_told(hand: Hand) -> None:
    run = make_run(hand, make_own_spec(workload=make_task(max_train_s=2.5)))
    steps = 0
    with pytest.raises(StopTraining), run.timed():
        while True:
            hand.passes(1)
            steps += 1
            run.step()
    assert steps == 3
    assert run.outcome is not None and run.outcome.status == Status.CAPPED


def test_limit_holds_at_the_evaluation_where_they_are_not(hand: Hand) -> None:
    run = make_run(hand, make_own_spec(workload=make_task(max_train_s=2.5)))
    with pytest.raises(StopTraining), run.timed():
        hand.passes(3)
        run.evaluated(step=1, metric=0.99)
    assert run.outcome is not None and run.outcome.status == Status.CAPPED
    assert run.outcome.time_to_target_s is None


def test_interrupt_leaves_no_outcome_of_the_trial(hand: Hand) -> None:
    run = make_run(hand, interrupt=lambda: hand.now_s > 103)
    with pytest.raises(StopTraining), run.timed():
        while True:
            hand.passes(1)
            run.step()
    assert run.is_interrupted
    assert hand.now_s == 104


def test_stop_passes_handlers_of_exceptions() -> None:
    assert not issubclass(StopTraining, Exception)


def test_metrics_of_ours_are_fields_and_others_are_values(hand: Hand) -> None:
    target = Target(metric="auc", value=0.99)
    run = make_run(hand, make_own_spec(workload=make_task(target=target)))
    trained(run, hand, 1)
    run.evaluated(
        step=1, metric=0.5, loss=1.5, values={"accuracy": 0.25, "mse": 2, "bad": math.nan}
    )
    evaluation = run.evaluations[0]
    assert (evaluation.accuracy, evaluation.loss, evaluation.macro_f1) == (0.25, 1.5, None)
    assert evaluation.values == {"mse": 2.0, "auc": 0.5}
    assert evaluation.value("auc") == 0.5 and evaluation.value("accuracy") == 0.25


def test_clock_that_was_closed_stands_still_for_good(hand: Hand, run: OwnRun) -> None:
    left_open = run.timed()
    left_open.__enter__()
    hand.passes(2)
    run.close()
    hand.passes(5)
    left_open.__exit__(None, None, None)  # As when it is collected as garbage.
    hand.passes(5)
    assert run._clock.current is None
    assert run.train_s == 2


def test_single_hit_at_the_end_is_a_miss_that_says_so(hand: Hand, run: OwnRun) -> None:
    trained(run, hand, 1)
    run.evaluated(step=1, metric=0.95)
    run.returned()
    assert run.outcome is not None and run.outcome.status == Status.MISSED
    assert "two in a row must hold it" in str(run.outcome.reason)
