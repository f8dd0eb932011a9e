"""What more searching is likely to bring, against the closed form and independent records."""

import math
from typing import Any

import numpy as np
import pytest
from making import WORKLOAD, make_evaluation, make_record, make_run

from tune_speed.core.comparability import target_of
from tune_speed.core.forecast import CHECKED_RATIO, FINEST, LAW, LEAST_RUNS, Law, Outlook
from tune_speed.core.records import Status, TrialRecord
from tune_speed.core.targets import Target

IID = Law(1.0, 1.0, 0.25, 0.8)
TARGET = Target(value=0.9)


def test_with_plain_constants_it_is_the_law_of_records_of_independent_runs() -> None:
    rng = np.random.default_rng(0)
    # Log errors with an exponential tail of scale 0.25, 200 runs and then three times as many.
    falls = rng.exponential(0.25, size=(4000, 800))
    fall = falls.max(axis=1) - falls[:, :200].max(axis=1)
    for at_least in (1e-9, 0.1, 0.25, 0.5, 1.0):
        assert IID.chance(at_least, 3.0) == pytest.approx((fall >= at_least).mean(), abs=0.02)
    low, middle, high = IID.falls(3.0)
    # None has a chance of a quarter, so that a fifth lies above the interval.
    assert low == 0.0
    assert np.median(fall) == pytest.approx(middle, abs=0.02)
    assert ((low <= fall) & (fall <= high)).mean() == pytest.approx(0.8, abs=0.02)


def test_a_fall_and_a_time_have_the_chance_that_they_are_made_of() -> None:
    for chance in (0.1, 0.5, 0.8):
        assert LAW.chance(LAW.fall(chance, 3.0), 3.0) == pytest.approx(chance)
        assert LAW.chance(0.4, LAW.ratio(chance, 0.4)) == pytest.approx(chance)
    assert LAW.fall(0.99, 0.1) == 0.0
    assert LAW.chance(0.4, 0.0) == 0.0 == pytest.approx(LAW.chance(500.0, 1.0))


def test_an_interval_holds_as_much_as_it_says_where_never_has_a_chance_of_its_own() -> None:
    wide, some, hardly = (LAW.ratios(fall, 3.0) for fall in (0.0, 0.5, 1.5))
    assert LAW.chance(0.0, wide.high) - LAW.chance(0.0, wide.low) == pytest.approx(0.8)
    # From a fifth to never: four fifths.
    assert LAW.chance(0.5, some.low) == pytest.approx(0.2) and some.high == math.inf
    assert hardly == (math.inf,) * 3
    # Little is left of the budget: none is all but certain.
    assert LAW.falls(0.05) == LAW.falls(0.0) == (0.0, 0.0, 0.0)
    ends = LAW.falls(20.0)
    inside = LAW.chance(ends.low, 20.0) - LAW.chance(ends.high, 20.0)
    assert inside == pytest.approx(LAW.level) and ends.low < ends.middle < ends.high


def record(number: int, end: float | None, status: Status, mode: str, metric: Any) -> TrialRecord:
    values = {} if metric is None else {metric: end}
    known = {"accuracy": end} if metric is None and end is not None else {}
    evaluation = make_evaluation(step=1, train_s=1.0, **known).model_copy(update={"values": values})
    run = make_run(status, time_s=1.0).model_copy(
        update={"evaluations": () if end is None else (evaluation,)}
    )
    made: TrialRecord = make_record(f"t{number}", status, runs=(run,)).model_copy(
        update={"workload": {**WORKLOAD, "mode": mode}}
    )
    return made


def test_runs_to_their_ends_count_and_stopped_ones_where_the_length_is_free() -> None:
    ends = (0.80, 0.85, 0.82, 0.7, 0.84, 0.81)
    whole = [record(i, end, Status.MISSED, "fixed_length", None) for i, end in enumerate(ends)]
    more = [record(7, 0.89, Status.CAPPED, "fixed_length", None)]
    more += [record(8, None, Status.FAILED, "fixed_length", None)]
    found = Outlook.of(whole + more, TARGET)
    assert found is not None and (found.runs, found.best, found.met_by) == (6, 0.85, None)
    assert Outlook.of(whole[: LEAST_RUNS - 1] + more, TARGET) is None
    free = [each.model_copy(update={"workload": {"mode": "anytime"}}) for each in whole + more]
    found = Outlook.of(free, TARGET)
    assert found is not None and (found.runs, found.best) == (7, 0.89)


def test_what_is_left_to_do_is_a_ratio_of_errors_and_a_target_that_was_met_is_certain() -> None:
    known = Outlook(6, 0.8, None, TARGET)
    assert known.fall == pytest.approx(math.log((0.2 + FINEST) / (0.1 + FINEST)))
    assert known.metric(known.fall) == pytest.approx(0.9)
    assert known.metric(50.0) == 1.0
    assert known.chance(1.0) < known.chance(3.0) < 1.0
    assert known._replace(target=Target(value=0.99)).chance(1.0) < known.chance(1.0)
    assert known.words(1.0) == f"{known.chance(1.0):.0%} to meet the target by then"
    assert known.words(1.01 * CHECKED_RATIO) == ""
    met = known._replace(met_by="t3")
    assert (met.chance(0.0), met.words(1.0)) == (1.0, "")


def test_of_a_loss_the_error_is_itself_and_what_has_no_error_has_no_outlook() -> None:
    loss = Outlook(6, 0.8, None, Target(metric="loss", value=0.4, mode="min"))
    assert loss.fall == pytest.approx(math.log(2)) and loss.metric(math.log(4)) == pytest.approx(
        0.2
    )
    ends = [record(i, 30.0 + i, Status.MISSED, "fixed_length", "score") for i in range(8)]
    ends = [e.model_copy(update={"workload": {"target": {"metric": "score"}}}) for e in ends]
    assert target_of(ends[0].workload).metric == "score"
    assert Outlook.of(ends, Target(metric="score", value=40.0)) is None
