from making import make_evaluation, make_record, make_run

from tune_speed.records import Status
from tune_speed.search.packed_records import PackedRecords


def test_records_come_out_equal_and_in_order() -> None:
    run = make_run(Status.MISSED)
    curve = tuple(make_evaluation(step=step, train_s=step / 7) for step in range(50))
    long = make_record("t0001").model_copy(
        update={"runs": (run.model_copy(update={"evaluations": curve}),)}
    )
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
    run = make_run(Status.MISSED)
    curve = tuple(make_evaluation(step=step, train_s=step / 7) for step in range(200))
    record = make_record().model_copy(
        update={"runs": (run.model_copy(update={"evaluations": curve}),)}
    )
    records = PackedRecords()
    records.add(record)
    assert len(records._packed["t0000"]) < len(record.model_dump_json()) / 4
