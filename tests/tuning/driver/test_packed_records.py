from helpers.making import make_evaluation, make_record, make_run

from tune_speed.core.records import Status, TrialRecord
from tune_speed.tuning.driver.ledger import PackedRecords


def with_curve(trial_id: str, *, num_evaluations: int) -> TrialRecord:
    curve = tuple(make_evaluation(step=i, train_s=i / 7) for i in range(num_evaluations))
    run = make_run(Status.MISSED).model_copy(update={"evaluations": curve})
    return make_record(trial_id).model_copy(update={"runs": (run,)})


def test_records_come_out_equal_and_in_order() -> None:
    long = with_curve("t0001", num_evaluations=50)
    records = PackedRecords()
    records.add(long)
    records.add(make_record("t0000"))
    assert list(records.items()) == [("t0001", long), ("t0000", make_record("t0000"))]
    assert records == {"t0001": long, "t0000": make_record("t0000")}


def test_names_are_known_without_unpacking() -> None:
    records = PackedRecords()
    records.add(make_record("t0000"))
    assert ("t0000" in records, "t0001" in records, len(records)) == (True, False, 1)
    assert records.get("t0001") is None


def test_a_packed_record_is_a_quarter_of_its_text_or_less() -> None:
    record = with_curve("t0000", num_evaluations=200)
    records = PackedRecords()
    records.add(record)
    assert len(records._packed["t0000"]) < len(record.model_dump_json()) / 4
