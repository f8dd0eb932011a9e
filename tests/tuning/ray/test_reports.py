import json

from helpers.making import make_evaluation, make_record, make_run

from tune_speed.core.records import Status, TrialRecord
from tune_speed.tuning.ray.reports import Receiver, Sender


def record_after(num_evaluations: int) -> TrialRecord:
    evaluations = tuple(make_evaluation(step=step) for step in range(num_evaluations))
    run = make_run(Status.CAPPED).model_copy(update={"evaluations": evaluations})
    return make_record(status=Status.CAPPED, runs=(run,))


def test_driver_has_the_whole_record_after_each_report() -> None:
    sender, receiver = Sender(), Receiver()
    for number in (1, 2, 5):
        assert receiver.record(sender.standing(record_after(number))) == record_after(number)
    whole = record_after(7)
    assert receiver.record(sender.ended("finished", whole)) == whole


def test_each_evaluation_is_sent_once_while_a_trial_runs() -> None:
    sender = Sender()
    sent = [json.loads(sender.standing(record_after(n))["record"]) for n in (1, 2, 5)]
    steps = [[e["step"] for e in record["runs"][0]["evaluations"]] for record in sent]
    assert steps == [[0], [1], [2, 3, 4]]


def test_process_takes_no_other_trial_after_one_that_hangs() -> None:
    ends = {how: Sender.ended(how)["done"] for how in ("finished", "interrupted", "stopped")}
    assert all(ends.values())
    assert not Sender.ended("hung", record_after(1))["done"]
