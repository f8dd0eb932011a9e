import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest
from helpers.making import make_evaluation, make_record, make_run
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import TrialState

from tune_speed.core.records import Clocks, Evaluation, Status, TrialRecord
from tune_speed.study.file import StudyFile, load_study
from tune_speed.tuning.driver.optuna_journal import JOURNAL, OptunaJournal

STUDY = """
study: opened
workload: digits
recipe:
  model: resnet20
  optimizer: {sgd: {lr: {low: 0.01, high: 1.0, log: true}}}
  batch_size: {choices: [32, 64]}
  epochs: 2
"""
Records = dict[str, TrialRecord]


@pytest.fixture
def study(tmp_path: Path) -> StudyFile:
    file = tmp_path / "opened.yaml"
    file.write_text(STUDY)
    return load_study(file)


def record_of(number: int, status: Status = Status.REACHED, **run: Any) -> TrialRecord:
    params = {"optimizer.sgd.lr": 0.01 * (number + 1), "batch_size": 32 if number % 2 else 64}
    runs = (make_run(status, **run),)
    return make_record(f"t{number:04d}", status, params=params, runs=runs)


def opened(folder: Path) -> optuna.Study:
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    return optuna.load_study(study_name="opened", storage=storage)


@contextmanager
def journal_of(study: StudyFile, folder: Path, records: Records) -> Iterator[OptunaJournal]:
    journal = OptunaJournal(study, folder, records)
    yield journal
    journal.close()
    assert journal.news() == []


def wait_for(met: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not met():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def run_trial(journal: OptunaJournal, records: Records, record: TrialRecord) -> None:
    journal.trial_started(trial_id=record.trial_id, params=record.params, recipe={})
    for evaluation in record.runs[-1].evaluations:
        journal.trial_evaluated(trial_id=record.trial_id, evaluation=evaluation)
    records[record.trial_id] = record
    journal.trial_finished(record=record)


ENDS: dict[Status, tuple[TrialState, list[float] | None]] = {
    Status.REACHED: (TrialState.COMPLETE, [2.0]),
    Status.MISSED: (TrialState.COMPLETE, [2.0]),
    Status.CAPPED: (TrialState.PRUNED, None),
    Status.OOM: (TrialState.FAIL, None),
    Status.DIVERGED: (TrialState.FAIL, None),
    Status.FAILED: (TrialState.FAIL, None),
}


@pytest.mark.parametrize("is_lost", [False, True])
def test_each_end_is_one_of_optunas(study: StudyFile, tmp_path: Path, is_lost: bool) -> None:
    """Written as it happened, or from the records afterwards: the same."""
    records: Records = {}
    with journal_of(study, tmp_path, records) as journal:
        for number, status in enumerate(ENDS):
            run_trial(journal, records, record_of(number, status, time_s=2.0, accuracy=0.88))
    if is_lost:
        (tmp_path / JOURNAL).unlink()
        with journal_of(study, tmp_path, records):
            pass
    trials = opened(tmp_path).trials
    assert [(trial.state, trial.values) for trial in trials] == list(ENDS.values())
    assert [trial.user_attrs["status"] for trial in trials] == list(ENDS)
    assert [trial.params for trial in trials] == [record.params for record in records.values()]
    assert trials[0].intermediate_values == {10: 0.88}
    assert trials[1].constraints == {"target": pytest.approx(0.02)}  # The target is 0.9.
    assert trials[0].user_attrs["stop_reason"] == "ended as reached"


def test_best_trial_is_the_fastest_of_those_that_hit(study: StudyFile, tmp_path: Path) -> None:
    records: Records = {}
    with journal_of(study, tmp_path, records) as journal:
        run_trial(journal, records, record_of(0, time_s=3.0, accuracy=0.98))
        run_trial(journal, records, record_of(1, Status.MISSED, time_s=1.0, accuracy=0.9))
        run_trial(journal, records, record_of(2, time_s=2.0, accuracy=0.97))
    found = opened(tmp_path)
    assert found.best_trial.user_attrs["trial_id"] == "t0002"
    assert found.metric_names == ["time to target [s]"]
    assert found.user_attrs["target"] == "accuracy ≥ 0.97"


def test_the_best_trial_is_that_of_the_best_end_where_a_study_has_a_goal(tmp_path: Path) -> None:
    file, records = tmp_path / "opened.yaml", dict[str, TrialRecord]()
    file.write_text(STUDY + "goal: {maximise: accuracy, within: 9s}\n")
    study = load_study(file)
    workload = study.workload.model_dump(mode="json")
    with journal_of(study, tmp_path, records) as journal:
        for number, end in enumerate((0.9, 0.98, 0.95)):
            record = record_of(number, time_s=1.0 + number, accuracy=end)
            run_trial(journal, records, record.model_copy(update={"workload": workload}))
    found = opened(tmp_path)
    assert found.direction == StudyDirection.MAXIMIZE and found.metric_names == ["accuracy"]
    assert (found.best_trial.user_attrs["trial_id"], found.best_value) == ("t0001", 0.98)
    assert found.user_attrs["target"] == "best accuracy within 9 s"


def test_a_running_trial_is_seen_with_its_curve(study: StudyFile, tmp_path: Path) -> None:
    with journal_of(study, tmp_path, {}) as journal:
        params = record_of(0).params
        journal.trial_started(trial_id="t0000", params=params, recipe={})
        for step in (0, 10, 20):  # The untrained model is no step of the run.
            evaluation = make_evaluation(step=step, accuracy=step / 100)
            journal.trial_evaluated(trial_id="t0000", evaluation=evaluation)
        wait_for(lambda: _seen(tmp_path) == {10: 0.1, 20: 0.2})
        assert opened(tmp_path).trials[0].state == TrialState.RUNNING
        journal.trial_interrupted(trial_id="t0000", reason="the search was stopped")
    (trial,) = opened(tmp_path).trials
    assert trial.state == TrialState.FAIL
    assert trial.user_attrs["stop_reason"] == "the search was stopped"


def _seen(folder: Path) -> dict[int, float]:
    if not (folder / JOURNAL).exists():
        return {}
    trials = opened(folder).trials
    return trials[0].intermediate_values if trials else {}


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200] + b'{"half')


def _killed_between_attributes(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if b'"status"' in line)
    path.write_bytes(b"".join(lines[: last + 1]))


def _emptied(path: Path) -> None:
    path.write_bytes(b"")


def _foreign(path: Path) -> None:
    path.write_text("not a journal\n")


@pytest.mark.parametrize(
    "damage", [Path.unlink, _cut, _killed_between_attributes, _emptied, _foreign]
)
def test_a_journal_that_was_lost_or_damaged_is_made_again_from_the_records(
    study: StudyFile, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    records: Records = {}
    with journal_of(study, tmp_path, records) as journal:
        for number in range(3):
            run_trial(journal, records, record_of(number))
    before = [trial.params for trial in opened(tmp_path).trials]
    damage(tmp_path / JOURNAL)
    with journal_of(study, tmp_path, records) as journal:
        run_trial(journal, records, record_of(3))
    assert journal.news() == []
    trials = opened(tmp_path).trials
    assert [trial.params for trial in trials[:3]] == before
    assert len(trials) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["opened.yaml", JOURNAL]


def test_a_journal_that_is_whole_is_gone_on_with(study: StudyFile, tmp_path: Path) -> None:
    records: Records = {}
    with journal_of(study, tmp_path, records) as journal:
        run_trial(journal, records, record_of(0))
        journal.trial_started(trial_id="t0001", params=record_of(1).params, recipe={})
    length = (tmp_path / JOURNAL).stat().st_size
    first = (tmp_path / JOURNAL).read_bytes()
    with journal_of(study, tmp_path, records) as journal:
        run_trial(journal, records, record_of(1))
    assert (tmp_path / JOURNAL).read_bytes()[:length] == first
    # The trial that a killed driver left running has failed; it runs again as another.
    states = [trial.state for trial in opened(tmp_path).trials]
    assert states == [TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE]


def test_times_that_were_re_clocked_are_written_again(study: StudyFile, tmp_path: Path) -> None:
    records: Records = {}
    with journal_of(study, tmp_path, records) as journal:
        run_trial(journal, records, record_of(0, time_s=2.0))
        run = record_of(0, time_s=2.0).runs[-1]
        new = run.model_copy(update={"time_to_target_s": 1.5, "clocks": Clocks(train_s=1.5)})
        records["t0000"] = records["t0000"].model_copy(update={"runs": (new,)})
    assert [trial.values for trial in opened(tmp_path).trials] == [[1.5]]


def test_new_times_are_written_where_the_value_is_a_metric(tmp_path: Path) -> None:
    file, records = tmp_path / "opened.yaml", dict[str, TrialRecord]()
    file.write_text(STUDY + "goal: {maximise: accuracy, within: 9s}\n")
    study = load_study(file)
    workload = {"workload": study.workload.model_dump(mode="json")}
    with journal_of(study, tmp_path, records) as journal:
        run_trial(journal, records, record_of(0, time_s=2.0).model_copy(update=workload))
        records["t0000"] = record_of(0, time_s=1.5).model_copy(update=workload)
    assert [trial.user_attrs["train_s"] for trial in opened(tmp_path).trials] == [1.5]


def test_what_cannot_be_written_ends_the_journal_alone(study: StudyFile, tmp_path: Path) -> None:
    (tmp_path / "optuna.log").mkdir()
    journal = OptunaJournal(study, tmp_path, {})
    run_trial(journal, {}, record_of(0))
    journal.close()
    (news,) = journal.news()
    assert "--resume writes again" in news
    assert f"{tmp_path / 'optuna.log'} cannot be written: it is a folder" in news
    assert "Traceback" not in news


def test_moved_folder_ends_the_journal_in_a_sentence(study: StudyFile, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    journal = OptunaJournal(study, folder, {})
    while not (folder / "optuna.log").exists():
        time.sleep(0.01)
    folder.rename(tmp_path / "moved")
    run_trial(journal, {}, record_of(0))
    journal.close()
    (news,) = journal.news()
    assert str(folder / "optuna.log") in news and "Traceback" not in news


def test_link_in_the_journals_place_is_replaced(study: StudyFile, tmp_path: Path) -> None:
    (other := tmp_path / "other").mkdir()
    with journal_of(study, other, {}):
        pass
    before = (other / "optuna.log").read_bytes()
    (tmp_path / "optuna.log").symlink_to(other / "optuna.log")
    with journal_of(study, tmp_path, records := {}) as journal:
        run_trial(journal, records, record_of(0))
    assert (other / "optuna.log").read_bytes() == before
    assert len(opened(tmp_path).trials) == 1


def test_a_long_curve_is_thinned_out_to_its_last_value(study: StudyFile, tmp_path: Path) -> None:
    evaluations: tuple[Evaluation, ...] = tuple(
        make_evaluation(step=step, accuracy=step / 2000) for step in range(1, 1001)
    )
    run = make_run(Status.MISSED).model_copy(update={"evaluations": evaluations})
    record = make_record(status=Status.MISSED, params=record_of(0).params, runs=(run,))
    with journal_of(study, tmp_path, {"t0000": record}):
        pass
    (trial,) = opened(tmp_path).trials
    assert len(trial.intermediate_values) <= 201
    assert trial.last_step == 1000
