"""The conductor with a real policy and ledger, and trials whose outcomes are made by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from making import make_evaluation, make_run

from tune_speed.records import Evaluation, Status, TrialRecord
from tune_speed.search.conductor import Conductor
from tune_speed.search.ledger import Ledger
from tune_speed.search.study_file import load_study
from tune_speed.search.trial_file import write_trial_file
from tune_speed.trial import Allotment, TrialSpec, make_record

STUDY = """
study: conducted
workload: digits
recipe:
  model: resnet20
  optimizer: {sgd: {lr: {low: 0.01, high: 1.0, log: true}}}
  epochs: {low: 1, high: 20}
  batch_size: 64
search: {trials: 3, sampler: random, time_budget: 10m, seed: 7}
"""


class Witness:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def trial_started(
        self, *, trial_id: str, params: dict[str, Any], recipe: dict[str, Any]
    ) -> None:
        self.seen.append(("started", trial_id))

    def trial_evaluated(self, *, trial_id: str, evaluation: Evaluation) -> None:
        self.seen.append(("evaluated", f"{trial_id} at {evaluation.step}"))

    def trial_finished(self, *, record: TrialRecord) -> None:
        self.seen.append(("finished", record.trial_id))

    def trial_interrupted(self, *, trial_id: str, reason: str) -> None:
        self.seen.append(("interrupted", trial_id))


Begin = Callable[..., Conductor]


@pytest.fixture
def witness() -> Witness:
    return Witness()


@pytest.fixture
def begin(tmp_path: Path, witness: Witness) -> Any:
    """Begins a session on the study; each session has the ledger to itself."""
    file = tmp_path / "conducted.yaml"
    file.write_text(STUDY)
    open_ledgers: list[Ledger] = []

    def begin(*, overrides: tuple[str, ...] = (), now: Callable[[], float] = lambda: 0.0) -> Any:
        for ledger in open_ledgers:
            ledger.close()
        open_ledgers[:] = [Ledger(tmp_path / "study")]
        return Conductor(
            study=load_study(file, overrides=overrides),
            workload_hash="w",
            ledger=open_ledgers[0],
            allotment=Allotment(device="cpu"),
            observers=[witness],
            now=now,
        )

    yield begin
    open_ledgers[0].close()


def propose(conductor: Conductor) -> TrialSpec:
    spec = conductor.propose()
    assert spec is not None
    return spec


def ended(spec: TrialSpec, status: Status = Status.REACHED, **run: Any) -> TrialRecord:
    return make_record(spec, spec.recipe, make_run(status, **run), started_at="")


def test_search_ends_after_its_trials(begin: Begin) -> None:
    conductor = begin()
    for _ in range(3):
        conductor.finished(ended(propose(conductor)))
    assert conductor.propose() is None
    assert conductor.num_finished == 3


def test_each_trial_has_its_own_seed_and_keeps_it(begin: Begin) -> None:
    specs = [propose(begin()) for _ in range(1)] + [propose(begin())]
    assert [spec.seed for spec in specs] == [700_000, 700_000]
    assert propose(begin()).trial_id == "t0000"


def test_nothing_starts_after_the_time_budget(begin: Begin) -> None:
    seconds = [0.0]
    conductor = begin(now=lambda: seconds[0])
    propose(conductor)
    seconds[0] = 599.0
    assert conductor.time_left_s() == 1.0
    propose(conductor)
    seconds[0] = 600.0
    assert conductor.propose() is None


def test_proposal_is_on_disk_before_the_trial_is_known(begin: Begin, tmp_path: Path) -> None:
    spec = propose(begin())
    assert spec.trial_id in (tmp_path / "study" / "ledger.jsonl").read_text()


def test_resumed_search_runs_no_finished_trial_again(begin: Begin) -> None:
    first = begin()
    done, running = propose(first), propose(first)
    first.finished(ended(done))
    second = begin()
    again = propose(second)
    assert (again.trial_id, again.params, again.seed) == (
        running.trial_id,
        running.params,
        running.seed,
    )
    assert propose(second).trial_id == "t0002"
    assert second.propose() is None


def test_record_that_the_killed_driver_missed_is_taken_over(begin: Begin, tmp_path: Path) -> None:
    spec = propose(begin())
    write_trial_file(tmp_path / "study", ended(spec))
    conductor = begin()
    assert conductor.num_finished == 1
    assert propose(conductor).trial_id == "t0001"


def test_observers_hear_each_evaluation_once(begin: Begin, witness: Witness) -> None:
    conductor = begin()
    spec = propose(conductor)
    curve = tuple(make_evaluation(step=step) for step in (1, 2, 3))
    for length in (1, 2):
        run = make_run(Status.CAPPED).model_copy(update={"evaluations": curve[:length]})
        conductor.evaluated(make_record(spec, spec.recipe, run, started_at=""))
    run = make_run().model_copy(update={"evaluations": curve})
    conductor.finished(make_record(spec, spec.recipe, run, started_at=""))
    evaluated = [what for kind, what in witness.seen if kind == "evaluated"]
    assert evaluated == ["t0000 at 1", "t0000 at 2", "t0000 at 3"]
    assert witness.seen[0] == ("started", "t0000")
    assert witness.seen[-1] == ("finished", "t0000")


def test_trial_that_cannot_win_is_stopped_and_recorded_with_the_reason(begin: Begin) -> None:
    conductor = begin(overrides=("workload.mode=anytime",))
    conductor.finished(ended(propose(conductor), time_s=2.0))
    slow = propose(conductor)
    reason = conductor.evaluated(ended(slow, Status.CAPPED, time_s=3.0))
    assert reason == "stopped at 3.0 s: leader t0000 met the target in 2.0 s"
    record = conductor.ledger.records[slow.trial_id]
    assert (record.status, record.stop_reason) == (Status.CAPPED, reason)
    assert conductor.running == ()


def test_trial_whose_process_died_runs_again_and_then_counts_as_failed(begin: Begin) -> None:
    conductor = begin()
    spec = propose(conductor)
    conductor.died(spec.trial_id, reason="killed", details="once")
    again = propose(conductor)
    assert (again.trial_id, again.params) == (spec.trial_id, spec.params)
    conductor.died(again.trial_id, reason="killed again", details="twice")
    record = conductor.ledger.records[spec.trial_id]
    assert record.status == Status.FAILED
    assert (record.stop_reason, record.runs[0].traceback) == ("killed again", "twice")
    assert propose(conductor).trial_id == "t0001"


def test_trial_that_died_after_writing_its_record_is_not_lost(begin: Begin, tmp_path: Path) -> None:
    conductor = begin()
    spec = propose(conductor)
    write_trial_file(tmp_path / "study", ended(spec))
    conductor.died(spec.trial_id, reason="killed", details="once")
    assert conductor.ledger.records[spec.trial_id].status == Status.REACHED


def test_interrupted_trial_has_no_record_and_runs_again_on_resume(
    begin: Begin, witness: Witness
) -> None:
    conductor = begin()
    spec = propose(conductor)
    conductor.interrupted(spec.trial_id, reason="Ctrl-C")
    assert witness.seen[-1] == ("interrupted", spec.trial_id)
    assert propose(begin()).trial_id == spec.trial_id


def test_full_disk_ends_the_search_and_keeps_what_ran(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tune_speed.errors import StorageError

    conductor = begin()
    spec = propose(conductor)

    def refuse(*_: Any) -> None:
        raise StorageError("disk full")

    monkeypatch.setattr(conductor.ledger, "_append", refuse)
    conductor.finished(ended(spec))
    assert isinstance(conductor.failure, StorageError)
    assert conductor.propose() is None
    assert spec.trial_id in conductor.ledger.records
