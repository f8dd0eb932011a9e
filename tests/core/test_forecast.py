"""What more searching is likely to bring, against the closed form and independent records."""

import math
from typing import Any

import numpy as np
import pytest
from helpers.making import WORKLOAD, make_evaluation, make_record, make_run

from tune_speed.core.comparability import target_of
from tune_speed.core.forecast import CHECKED_RATIO, FINEST, LAW, LEAST_RUNS, Law, Outlook
from tune_speed.core.records import Clocks, Status, TrialRecord
from tune_speed.core.targets import Target

IID = Law(1.0, 1.0, 0.25, 0.8)
TARGET = Target(value=0.9)
SEEN = LAW.at(10.0, 40)
"""The law of a search in its middle."""


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
        assert SEEN.chance(SEEN.fall(chance, 3.0), 3.0) == pytest.approx(chance)
        assert SEEN.chance(0.4, SEEN.ratio(chance, 0.4)) == pytest.approx(chance)
    assert SEEN.fall(0.99, 0.1) == 0.0
    assert SEEN.chance(0.4, 0.0) == 0.0 == pytest.approx(SEEN.chance(500.0, 1.0))


def test_near_what_is_possible_the_spread_of_independent_runs_falls_as_their_number() -> None:
    rng = np.random.default_rng(0)
    law, medians = Law(1.0, 1.0, 4.0, 0.8, by_runs=1.0), []
    for runs in (50, 200):
        # No error is below 0.1, and near it they are evenly dense.
        errors = 0.1 + 0.4 * rng.random(size=(4000, 4 * runs))
        medians.append(np.median(np.log(errors[:, :runs].min(axis=1) / errors.min(axis=1))))
    fewer, more = (law.at(9.0, runs).fall(0.5, 3.0) for runs in (50, 200))
    assert medians[0] / medians[1] == pytest.approx(fewer / more, rel=0.1)


def test_a_search_that_has_come_far_hopes_for_less_and_knows_it_better() -> None:
    early, late = LAW.at(3.0, 20), LAW.at(20.0, 100)
    for fall in (0.0, 0.2, 1.0):
        assert late.chance(fall, 1.0) < early.chance(fall, 1.0)
    assert 0 < late.falls(3.0).high < early.falls(3.0).high
    plain = LAW._replace(by_worth=0.0, by_runs=0.0)
    assert plain.at(3.0, 20).falls(1.0) == plain.at(20.0, 100).falls(1.0)


def test_an_interval_holds_as_much_as_it_says_where_never_has_a_chance_of_its_own() -> None:
    early = LAW.at(3.0, 10)
    wide, some, hardly = (early.ratios(fall, 9.0) for fall in (0.0, 0.5, 2.0))
    assert early.chance(0.0, wide.high) - early.chance(0.0, wide.low) == pytest.approx(0.8)
    # From a fifth to never: four fifths.
    assert early.chance(0.5, some.low) == pytest.approx(0.2) and some.high == math.inf
    assert hardly == (math.inf,) * 3
    # Little is left of the budget: none is all but certain.
    assert SEEN.falls(0.05) == SEEN.falls(0.0) == (0.0, 0.0, 0.0)
    ends = SEEN.falls(20.0)
    inside = SEEN.chance(ends.low, 20.0) - SEEN.chance(ends.high, 20.0)
    assert inside == pytest.approx(LAW.level) and ends.low < ends.middle < ends.high


def record(
    number: int,
    end: float | None,
    status: Status,
    mode: str,
    metric: Any,
    train_s: float = 1.0,
) -> TrialRecord:
    values = {} if metric is None else {metric: end}
    known = {"accuracy": end} if metric is None and end is not None else {}
    evaluation = make_evaluation(step=1, train_s=1.0, **known).model_copy(update={"values": values})
    run = make_run(status, time_s=1.0).model_copy(
        update={
            "evaluations": () if end is None else (evaluation,),
            "clocks": Clocks(train_s=train_s),
        }
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


def test_full_runs_worth_counts_the_training_of_all_trials_in_longest_ones() -> None:
    whole = [record(i, 0.8, Status.MISSED, "fixed_length", None, 2.0) for i in range(5)]
    whole += [record(5, 0.8, Status.MISSED, "fixed_length", None, 8.0)]
    others = [record(6, 0.9, Status.CAPPED, "fixed_length", None, 3.0)]
    others += [record(7, None, Status.FAILED, "fixed_length", None, 3.0)]
    found = Outlook.of(whole + others, TARGET)
    assert found is not None and found.worth == (5 * 2 + 8 + 3 + 3) / 8
    assert found.law == LAW.at(3.0, 6)
    # Without a clock, all that is known is that there was one.
    timeless = [record(i, 0.8, Status.MISSED, "fixed_length", None, 0.0) for i in range(6)]
    assert getattr(Outlook.of(timeless, TARGET), "worth", None) == 1.0


def test_what_is_left_to_do_is_a_ratio_of_errors_and_a_target_that_was_met_is_certain() -> None:
    known = Outlook(6, 4.0, 0.8, None, TARGET)
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
    loss = Outlook(6, 4.0, 0.8, None, Target(metric="loss", value=0.4, mode="min"))
    assert loss.fall == pytest.approx(math.log(2)) and loss.metric(math.log(4)) == pytest.approx(
        0.2
    )
    ends = [record(i, 30.0 + i, Status.MISSED, "fixed_length", "score") for i in range(8)]
    ends = [e.model_copy(update={"workload": {"target": {"metric": "score"}}}) for e in ends]
    assert target_of(ends[0].workload).metric == "score"
    assert Outlook.of(ends, Target(metric="score", value=40.0)) is None
