"""A run for several targets counts at each as a run of its own for that target would have."""

from typing import Any

import pytest
from making import make_evaluation, make_record, make_run
from pydantic import ValidationError

from tune_speed.core.comparability import by_target, target_of
from tune_speed.core.records import LowerTarget, RunResult, Status, StepTime, Timing, TrialRecord
from tune_speed.core.targets import Target, Task
from tune_speed.runtime.pooled_times import reclocked

SEVERAL = Target(value=0.94, values=(0.90, 0.94, 0.92), weights=(1.0, 2.0, 1.0))
# Passes 0.90 for good at 2 s, 0.92 at 4 s, and 0.94 never twice in a row.
CURVE = [0.5, 0.91, 0.905, 0.93, 0.95, 0.925]


def run_of(status: Status = Status.CAPPED, **changes: Any) -> RunResult:
    evaluations = tuple(
        make_evaluation(step=10 * i, train_s=float(i), accuracy=a)
        for i, a in enumerate(CURVE, start=1)
    )
    changes = {"evaluations": evaluations, "steps": 60, **changes}
    return make_run(status, time_s=6.0).model_copy(update=changes)


def record_of(run: RunResult) -> TrialRecord:
    lower = (
        LowerTarget(value=0.92, workload_name="at 92", workload_hash="h92"),
        LowerTarget(value=0.90, workload_name="at 90", workload_hash="h90"),
    )
    record = make_record(runs=(run,), workload_hash="h94")
    workload = {**record.workload, "target": SEVERAL.model_dump(mode="json")}
    changes = {"workload": workload, "lower_targets": lower, "status": run.status}
    return record.model_copy(update=changes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"value": 0.9, "values": [0.9, 0.94]}, "value must be left out, or be the hardest of"),
        ({"value": 0.9, "values": [0.9]}, "two different numbers or more"),
        ({"value": 0.9, "values": [0.9, 0.9]}, "two different numbers or more"),
        ({"value": 0.9, "values": [0.9, 0.0]}, "more than 0 and at most 1 for accuracy"),
        ({"value": 0.9, "values": [0.9, 0.8], "weights": [1.0]}, "one for each of the 2 values"),
        ({"value": 0.9, "values": [0.9, 0.8], "weights": [1.0, 0.0]}, "greater than 0"),
        ({"value": 0.9, "weights": [1.0]}, "two different numbers or more"),
    ],
)
def test_values_that_are_no_several_targets_are_refused(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        Target(**fields)


def test_lower_targets_come_hardest_first_whatever_the_order_and_less_may_be_better() -> None:
    assert [each.value for each in SEVERAL.lower] == [0.92, 0.90]
    assert [SEVERAL.weight(value) for value in (0.94, 0.92, 0.90)] == [0.5, 0.25, 0.25]
    loss = Target(metric="loss", mode="min", value=0.1, values=(0.3, 0.1, 0.2))
    assert [each.value for each in loss.lower] == [0.2, 0.3]
    assert SEVERAL.all_words == "accuracy ≥ 0.94, 0.92, 0.9" and SEVERAL.words == "accuracy ≥ 0.94"


def test_one_target_is_stored_as_ever() -> None:
    stored = {"metric": "accuracy", "value": 0.9, "mode": "max"}
    assert Target(value=0.9).model_dump(mode="json") == stored
    assert not {"crossings", "lower_targets"} & {
        *make_run().model_dump(),
        *make_record().model_dump(),
    }


def test_a_stopped_run_has_met_what_it_passed_twice_in_a_row() -> None:
    # By hand: 0.90 holds at 2 and 3 s, 0.92 at 4 and 5 s.
    assert Task(target=SEVERAL, mode="anytime").crossings(run_of()) == ((0.92, 4.0), (0.90, 2.0))


def test_a_run_of_fixed_length_meets_a_target_at_its_end_alone() -> None:
    task = Task(target=SEVERAL, mode="fixed_length")
    assert task.crossings(run_of(Status.MISSED)) == ((0.92, 6.0), (0.90, 6.0))
    assert task.crossings(run_of(Status.CAPPED)) == ()


def test_a_record_is_one_record_for_each_target() -> None:
    record = record_of(run_of(crossings=((0.90, 2.0),)))
    top, at_92, at_90 = by_target(record)
    assert top is record
    assert [at_92.status, at_90.status] == [Status.CAPPED, Status.REACHED]
    assert [at_92.time_to_target_s, at_90.time_to_target_s] == [None, 2.0]
    assert (at_90.workload_name, at_90.workload_hash) == ("at 90", "h90")
    assert target_of(at_90.workload) == Target(value=0.90)
    assert at_90.workload["target"] == Target(value=0.90).model_dump(mode="json")
    assert list(by_target(at_90)) == [at_90]


def test_records_come_back_from_json_with_their_targets() -> None:
    record = record_of(run_of(crossings=((0.90, 2.0),)))
    again = TrialRecord.model_validate_json(record.model_dump_json())
    assert again == record and list(by_target(again)) == list(by_target(record))


def test_other_step_times_move_crossings_as_they_do_evaluations() -> None:
    def window(step_s: float) -> StepTime:
        ends = {"low_s": step_s, "high_s": step_s, "num_steps": 9, "measured_in": "s/t"}
        return StepTime(key="k", step_s=step_s, **ends)

    isolated = {"timing": Timing.ISOLATED, "step_times": (window(0.1),), "shape_steps": ((0, 60),)}
    record = record_of(run_of(crossings=((0.92, 4.0), (0.90, 2.0)), **isolated))
    (run,) = reclocked(record, {"k": window(0.2)}).runs
    assert run.crossings == ((0.92, pytest.approx(8.0)), (0.90, pytest.approx(4.0)))
