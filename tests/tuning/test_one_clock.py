"""Every place that shows a trial's time shows the same one, however the trial ended."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.making import make_evaluation, make_record, make_run
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from tune_speed.core.records import Status, StepTime, Timing, TrialRecord
from tune_speed.reporting.page.trial_table import trial_anchors, trial_table
from tune_speed.reporting.study.reader import StudyReader
from tune_speed.study.file import load_study
from tune_speed.tracking import Query, Store, Tracker
from tune_speed.tracking.reader.leaders import find_leaders
from tune_speed.tracking.reader.queries import find_trial, find_trials
from tune_speed.tuning.driver.ledger import Ledger
from tune_speed.tuning.driver.optuna_journal import JOURNAL, OptunaJournal
from tune_speed.tuning.policy.base import Proposal

STUDY = """
study: study
workload: digits
recipe:
  model: resnet20
  optimizer: {sgd: {lr: {low: 0.01, high: 1.0, log: true}}}
  epochs: 2
  batch_size: 32
"""
ENDS = (Status.REACHED, Status.MISSED, Status.CAPPED, Status.DIVERGED)
# By three speeds, of which two kinds of step are corrected.
BEFORE, AFTER = {"a": 0.1, "b": 0.2, "c": 0.1}, {"a": 0.14, "b": 0.15, "c": 0.1}
Times = dict[str, float]


def step_time(key: str, step_s: float) -> StepTime:
    ends = {"step_s": step_s, "low_s": step_s, "high_s": step_s}
    return StepTime(key=key, num_steps=9, measured_in="study/t0000", **ends)


def record(number: int, key: str) -> TrialRecord:
    status, step_s = ENDS[number % len(ENDS)], BEFORE[key]
    curve = [make_evaluation(step=n, train_s=n * step_s) for n in (10, 20, 30)]
    run = make_run(status, time_s=30 * step_s).model_copy(
        update={
            "evaluations": tuple(curve),
            "steps": 30,
            "step_times": (step_time(key, step_s),),
            "timing": Timing.ISOLATED,
            "shape_steps": ((0, 30),),
        }
    )
    params = {"optimizer.sgd.lr": 0.01 * (number + 1)}
    return make_record(f"t{number:04d}", status, runs=(run,), params=params)


RECORDS = [record(number, key) for key in "abc" for number in range("abc".index(key), 12, 3)]
EXPECTED = {each.trial_id: 30 * AFTER[each.runs[0].step_times[0].key] for each in RECORDS}


class Session:
    def __init__(self, folder: Path, uri: str) -> None:
        self.ledger = Ledger(folder)
        file = folder.parent / "study.yaml"
        file.write_text(STUDY)
        options = {"study": "study", "study_tags": {}, "search_id": "x", "linger_s": 0.02}
        self.tracker = Tracker(Store(uri), **options)
        self.tracker.reconcile(self.ledger.records)
        self.journal = OptunaJournal(load_study(file), folder, self.ledger.records)

    def run(self) -> None:
        for each in RECORDS:
            self.ledger.proposed(Proposal(each.trial_id, each.params), seed=0)
            self.ledger.finished(each)
            self.tracker.trial_finished(record=each)
            self.journal.trial_finished(record=each)
        deadline_s = time.monotonic() + 60
        while self.tracker.expected:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)

    def correct(self) -> None:
        self.ledger.timed([], {key: step_time(key, step_s) for key, step_s in AFTER.items()})

    def close(self) -> None:
        self.journal.close()
        assert self.journal.news() == []
        assert self.tracker.close(timeout_s=60) == ()
        self.ledger.close()


def at_the_end(folder: Path, uri: str) -> None:
    session = Session(folder, uri)
    session.run()
    session.correct()
    session.tracker.trials_reclocked(list(EXPECTED))
    session.close()


def killed_and_resumed(folder: Path, uri: str) -> None:
    killed = Session(folder, uri)
    killed.run()
    killed.correct()
    killed.ledger.close()
    Session(folder, uri).close()


def in_mlflow(uri: str) -> dict[str, Times]:
    runs = {each.record.trial_id: each for each in find_trials(Store(uri), Query(study="study"))}
    client = Store(uri).create()
    metrics = {n: client.get_run(each.run_id).data.metrics for n, each in runs.items()}
    curves = {name: find_trial(Store(uri), each.run_id).record for name, each in runs.items()}
    return {
        "metrics": {name: each["train_s"] for name, each in metrics.items()},
        "speeds": {name: 320 / each["images_per_s"] for name, each in metrics.items()},
        "tags": {name: each.record.runs[0].clocks.train_s for name, each in runs.items()},
        "artifacts": {n: each.runs[0].evaluations[-1].train_s for n, each in curves.items()},
        "curves": {n: each.runs[0].evaluations[0].train_s * 3 for n, each in curves.items()},
    }


def in_optuna(folder: Path) -> dict[str, Times]:
    storage = JournalStorage(JournalFileBackend(str(folder / JOURNAL)))
    trials = storage.get_all_trials(storage.get_all_studies()[0]._study_id)
    return {"optuna": {t.user_attrs["trial_id"]: t.user_attrs["train_s"] for t in trials}}


def on_pages(reader: StudyReader) -> dict[str, Times]:
    (part,) = reader.read(finalists=len(RECORDS)).parts
    table = trial_table(part, anchors=trial_anchors([part]))
    number = [column.name for column in table.columns].index("train_s")
    ends = {t.record.trial_id: t.record.runs[0].evaluations[-1].train_s for t in part.trials}
    cells = {row.cells[0].text: float(row.cells[number].key) for row in table.rows}
    return {"figures": ends, "table": cells}


def by_commands(call: Callable[..., Any], folder: Path) -> dict[str, Times]:
    listed = call("list", "trials", "study", "--json", folder=folder).json
    names = [f"study/{name}" for name in EXPECTED]
    compared = call("compare", *names, "--json", folder=folder).json
    shown = {n: call("show", f"study/{n}", "--json", folder=folder).json for n in EXPECTED}
    return {
        "list": {each["trial_id"]: each["train_s"] for each in listed},
        "compare": dict(
            zip(EXPECTED, [320 / each for each in compared["result"]["images_per_s"]], strict=True)
        ),
        "show": {name: each["runs"][0]["clocks"]["train_s"] for name, each in shown.items()},
    }


@pytest.mark.parametrize("end", [at_the_end, killed_and_resumed])
def test_hits_misses_and_stopped_trials_have_one_time_wherever_they_are_shown(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[..., Any],
    end: Callable[[Path, str], None],
) -> None:
    uri, folder = f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "tune_speed_studies" / "study"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    end(folder, uri)
    with Ledger(folder) as ledger:
        own = {name: each.runs[0].clocks.train_s for name, each in ledger.records.items()}
    reader = StudyReader(Store(uri), "study")
    places = {"ledger": own} | in_mlflow(uri) | in_optuna(folder) | on_pages(reader)
    places |= by_commands(call, tmp_path)
    for place, times in places.items():
        assert times == pytest.approx(EXPECTED), place
    (total,) = find_leaders(Store(uri), Query(study="study")).totals.values()
    assert total.tuning_cost_s == pytest.approx(sum(EXPECTED.values()))


def test_who_watched_a_study_before_its_end_sees_the_corrected_times(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    session = Session(tmp_path / "study", uri)
    session.run()
    reader = StudyReader(Store(uri), "study")
    assert len(reader.read().trials) == len(RECORDS)
    session.correct()
    session.tracker.trials_reclocked(list(EXPECTED))
    session.close()
    seen = {t.record.trial_id: t.record.runs[0].clocks.train_s for t in reader.read().trials}
    assert seen == pytest.approx(EXPECTED)
