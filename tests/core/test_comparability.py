"""What is comparable, which result is best, and what a group of results cost."""

import math
from typing import Any

from helpers.making import make_evaluation, make_record, make_run

from tune_speed.core.comparability import (
    Totals,
    best_first,
    best_metric,
    board_key,
    fastest,
    final_goodness,
    final_metric,
    sort_key,
    sum_of,
    target_of,
    totals_of,
)
from tune_speed.core.records import RunResult, Status, TrialRecord


def run(time_s: float, *losses: float) -> RunResult:
    evaluations = tuple(
        make_evaluation(step=step).model_copy(update={"loss": loss})
        for step, loss in enumerate(losses)
    )
    return make_run(time_s=time_s).model_copy(update={"evaluations": evaluations})


def with_target(record: TrialRecord, **target: Any) -> TrialRecord:
    return record.model_copy(update={"workload": {"target": target}})


def test_records_are_compared_within_workload_protocol_device_and_kind() -> None:
    record = make_record()
    others = [
        make_record(device="cuda"),
        make_record(workload_hash="v" * 16),
        make_record(kind="certified"),
        record.model_copy(update={"protocol_version": record.protocol_version + 1}),
        record.model_copy(update={"workload_name": "other"}),
    ]
    assert board_key(make_record("t0001", study="another", time_s=9.0)) == board_key(record)
    assert len({board_key(record), *map(board_key, others)}) == 6


def test_totals_add_up_trials_hits_training_and_the_share_of_the_device() -> None:
    # A run of the helper's holds its device for twice its training time.
    two = make_record(runs=(make_run(time_s=1.0), make_run(time_s=3.0)))
    packed = make_record(status=Status.MISSED, time_s=6.0).model_copy(update={"max_cotenants": 2})
    found = totals_of([two, packed])
    assert found == Totals(trials=2, reached=1, tuning_cost_s=10.0, device_s=8.0 + 12.0 / 3)
    assert sum_of([totals_of([two]), totals_of([packed])]) == found
    assert totals_of([]) == sum_of([]) == Totals()


def test_best_is_the_fastest_then_the_better_metric_then_the_name() -> None:
    def record(name: str, time_s: float, accuracy: float) -> TrialRecord:
        return make_record(name, runs=(make_run(time_s=time_s, accuracy=accuracy),))

    ordered = [
        record("t0003", 1.0, 0.91),
        record("t0004", 2.0, 0.95),
        record("t0001", 2.0, 0.91),
        record("t0002", 2.0, 0.91),
        make_record("t0000", Status.MISSED),
    ]
    assert sorted(ordered[::-1], key=best_first) == ordered
    assert fastest(ordered[::-1]) == ordered[0]
    assert fastest(ordered[-1:]) is None


def test_result_without_a_time_comes_after_the_slowest() -> None:
    assert sort_key(1e300, -math.inf, "z") < sort_key(None, math.inf, "a")
    assert sort_key(None, 2.0, "z") < sort_key(None, 1.0, "a")


def test_metrics_of_a_record_are_its_targets_own() -> None:
    record = make_record(runs=(run(1.0, 0.9, 0.2, 0.4), run(2.0, 0.7, 0.3)))
    least = with_target(record, metric="loss", value=0.5, mode="min")
    assert (final_metric(least), best_metric(least), final_goodness(least)) == (0.3, 0.2, -0.3)
    most = with_target(record, metric="loss", value=0.5)
    assert (final_metric(most), best_metric(most), final_goodness(most)) == (0.3, 0.9, 0.3)


def test_record_without_evaluations_has_no_metric_and_is_worse_than_any() -> None:
    bare = make_run(Status.FAILED).model_copy(update={"evaluations": ()})
    record = make_record(status=Status.FAILED, runs=(bare,))
    assert (final_metric(record), best_metric(record)) == (None, None)
    assert final_goodness(record) == -math.inf
    unknown = with_target(make_record(), metric="auc", value=0.5)
    assert (final_metric(unknown), best_metric(unknown)) == (None, None)


def test_target_of_an_old_or_strange_record_is_read_without_validation() -> None:
    old = target_of({"target": {"value": 0.9}})
    assert (old.metric, old.value, old.mode) == ("accuracy", 0.9, "max")
    for workload in ({}, {"target": None}):
        empty = target_of(workload)
        assert (empty.metric, empty.mode) == ("accuracy", "max") and math.isnan(empty.value)
    strange = target_of({"target": {"metric": "accuracy", "value": 7, "mode": "upwards"}})
    assert (strange.value, strange.mode) == (7.0, "max")
