from datetime import UTC, datetime, timedelta, timezone
from itertools import permutations

from helpers.making import WORKLOAD, make_record, make_run

from tune_speed.core.comparability import board_key, fastest
from tune_speed.core.records import Recommended, Status
from tune_speed.tracking.schema import board_id, unpack_favourites
from tune_speed.tracking.search_summary import Summary

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_counts_by_status_and_knows_the_fastest() -> None:
    summary = Summary()
    for i, (status, time_s) in enumerate(
        [("missed", 1), ("reached", 5), ("reached", 3), ("oom", 1)]
    ):
        summary.add(make_record(f"t{i:04d}", Status(status), time_s=time_s))
    values = {p.key: p.value for p in summary.points()}
    assert values["trials"] == 4 and values["trials_reached"] == 2 and values["trials_failed"] == 0
    assert values["best_time_to_target_s"] == 3
    assert summary.tags(now=NOON, run_ids={})["tune_speed.best_trial"] == "t0002"


def test_a_trial_counts_once() -> None:
    summary = Summary()
    for _ in range(2):
        summary.add(make_record("t0000", Status.MISSED))
    values = {p.key: p.value for p in summary.points()}
    assert values["trials"] == 1 and "best_time_to_target_s" not in values
    assert "tune_speed.best_trial" not in summary.tags(now=NOON, run_ids={})


def test_of_equal_times_the_same_trial_is_best_in_whatever_order_they_come() -> None:
    scores = [0.91, 0.93, 0.95, 0.95, 0.92]
    records = [make_record(f"t{i}", runs=(make_run(accuracy=a),)) for i, a in enumerate(scores)]
    for order in permutations(records):
        summary = Summary()
        for record in order:
            summary.add(record)
        assert summary.best is records[2] is fastest(order)


def test_the_metric_of_the_target_decides_between_equal_times() -> None:
    target = {"target": {"metric": "macro_f1", "value": 0.4}}
    made = [make_record(f"t{i}") for i in range(2)]
    final = made[1].runs[0].evaluations[0].model_copy(update={"macro_f1": 0.9, "accuracy": 0.1})
    run = made[1].runs[0].model_copy(update={"evaluations": (final,)})
    other = made[1].model_copy(update={"runs": (run,), "workload": {**WORKLOAD, **target}})
    assert fastest([made[0].model_copy(update={"workload": other.workload}), other]) is other


def test_times_are_in_utc() -> None:
    there = NOON.astimezone(timezone(timedelta(hours=5)))
    assert (
        Summary().tags(now=there, run_ids={})["tune_speed.updated_at"]
        == "2026-01-01T12:00:00+00:00"
    )


def test_what_is_recommended_stands_beside_the_fastest_trial_on_its_own_board() -> None:
    summary = Summary()
    records = [make_record("t0000", time_s=2.0, device="A100"), make_record("t0001", time_s=1.0)]
    for record in records:
        summary.add(record)
    assert unpack_favourites(summary.tags(now=NOON, run_ids={})) == ("", ())
    best = Recommended(study="s", trial_id="t0000", runs=4, hits=3, chance=0.7, expected_s=3.0)
    fast = Recommended(study="s", trial_id="t0001", runs=1, hits=1, chance=0.4, expected_s=4.0)
    summary.favourites = (best, fast)
    tags = summary.tags(now=NOON, run_ids={"t0000": "ab12"})
    assert tags["tune_speed.best_trial"] == "t0001"
    known = best.model_copy(update={"run_id": "ab12"})
    assert unpack_favourites(tags) == (board_id(board_key(records[0])), (known, fast))
