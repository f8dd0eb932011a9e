import json

from helpers.making import make_evaluation, make_record, make_run

from tune_speed.core.records import Status, TrialRecord
from tune_speed.tuning.ray.liveness import end_report, received, running_report


def record_after(num_evaluations: int) -> TrialRecord:
    evaluations = tuple(make_evaluation(step=step) for step in range(num_evaluations))
    run = make_run(Status.CAPPED).model_copy(update={"evaluations": evaluations})
    return make_record(status=Status.CAPPED, runs=(run,))


def test_driver_has_the_whole_record_though_each_evaluation_is_sent_once() -> None:
    newest, before = None, 0
    for number in (1, 2, 5):
        report = running_report(record_after(number), before=before)
        sent = json.loads(report["record"])["runs"][0]["evaluations"]
        assert [each["step"] for each in sent] == [*range(before, number)]
        newest, before = received(report, newest), number
        assert newest == record_after(number)
    whole = record_after(7)
    assert received(end_report("finished", whole), newest) == whole


def test_process_takes_no_other_trial_after_one_that_hangs() -> None:
    assert all(end_report(how)["done"] for how in ("finished", "interrupted", "stopped"))
    assert not end_report("hung", record_after(1))["done"]
