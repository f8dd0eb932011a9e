"""The search as an Optuna study that others can open: a journal file in the study's folder.

    optuna-dashboard tune_speed_studies/NAME/optuna.log

A trial's value is its time to target [s], or what its training took; the constraint `target` says
how far its last metric was off. So `study.best_trial` is the fastest run that met the target, and
importances, contours and time lines are there. The ledger is the record: a journal that lacks
trials or cannot be read is written again from it. A thread writes, as each entry takes
milliseconds.
"""

import math
import os
import queue
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from tune_speed.core.comparability import final_metric, target_of
from tune_speed.core.errors import unwritable
from tune_speed.core.records import Evaluation, Status, TrialRecord
from tune_speed.core.text import switch
from tune_speed.study.file import StudyFile
from tune_speed.tuning.policy.samplers import distributions, hush_optuna

JOURNAL = "optuna.log"
STATES = {
    Status.REACHED: TrialState.COMPLETE,
    Status.MISSED: TrialState.COMPLETE,
    Status.CAPPED: TrialState.PRUNED,
}
MOST_VALUES = 200
"""Intermediate values of a trial; of more, evenly spread ones and the last."""
PATIENCE_S = 10.0


class OptunaJournal:
    """Writes a study's trials as they start, are evaluated and end; an observer of the search."""

    def __init__(self, study: StudyFile, folder: Path, records: Mapping[str, TrialRecord]) -> None:
        self._study, self._path, self._records = study, folder / JOURNAL, records
        self._news: list[str] = []
        self._clocks: dict[str, float] = {}
        self._storage: JournalStorage | None = None
        self._ids: dict[str, int] = {}
        self._entries = queue.SimpleQueue[Callable[[], None] | None]()
        self._thread = threading.Thread(target=self._work, name="optuna-journal", daemon=True)
        known = tuple(records.values())  # Before the thread reads them, a trial may end.
        self._entries.put(lambda: self._open(known))
        self._thread.start()

    def trial_started(self, *, trial_id: str, params: dict[str, Any], **_: Any) -> None:
        self._entries.put(lambda: self._start(trial_id, dict(params)))

    def trial_evaluated(self, *, trial_id: str, evaluation: Evaluation) -> None:
        metric = self._study.workload.metric_of(evaluation)
        if evaluation.step and metric == metric:
            self._entries.put(lambda: self._evaluate(trial_id, evaluation.step, metric))

    def trial_finished(self, *, record: TrialRecord) -> None:
        self._entries.put(lambda: self._finish(record))

    def trial_interrupted(self, *, trial_id: str, reason: str) -> None:
        """Enters that a trial has no outcome; it is run again as another trial of Optuna's."""
        self._entries.put(lambda: self._fail(trial_id, reason))

    def news(self) -> list[str]:
        news, self._news = self._news, []
        return news

    def close(self) -> None:
        """Writes what is left; all anew if the clocks of trials have changed since."""
        times_s = {trial_id: _train_s(record) for trial_id, record in self._records.items()}
        self._entries.put(lambda: self._settle(times_s))
        self._entries.put(None)
        self._thread.join(PATIENCE_S)

    def _work(self) -> None:
        hush_optuna()
        try:
            while (entry := self._entries.get()) is not None:
                entry()
        except Exception as error:
            cause = _os_error(error)
            of_disk = unwritable(self._path, cause) if cause else None
            self._news = [
                f"no further trial is written to {self._path}, which {switch('resume')} writes"
                f" again from the ledger:\n{of_disk or traceback.format_exc()}"
            ]

    def _settle(self, times_s: Mapping[str, float]) -> None:
        if times_s != self._clocks:
            self._write_all(self._records.values())

    def _open(self, records: Iterable[TrialRecord]) -> None:
        times_s = {record.trial_id: _train_s(record) for record in records}
        try:
            # Optuna passes over a line without an end, and then appends to it. A link is replaced.
            is_ours = os.access(self._path, os.W_OK) and not self._path.is_symlink()
            is_whole = is_ours and self._path.read_bytes().endswith(b"\n")
            storage = _storage_at(self._path) if is_whole else None
            trials = storage.get_all_trials(_study_id(storage)) if storage else []
        except Exception:  # Whatever Optuna says of a damaged file: it is written anew.
            storage, trials = None, []
        ended = [trial.user_attrs for trial in trials if "status" in trial.user_attrs]
        # Attributes are written one after the other: a driver may be killed between two.
        self._clocks = {each["trial_id"]: each.get("train_s", math.nan) for each in ended}
        if storage is None or self._clocks != times_s:
            self._write_all(records)
            return
        self._storage = storage
        for trial in trials:  # Of a driver that was killed.
            if not trial.state.is_finished():
                storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)

    def _write_all(self, records: Iterable[TrialRecord]) -> None:
        new = self._path.with_suffix(".new")
        new.unlink(missing_ok=True)
        storage = _storage_at(new)
        target = self._study.workload.target
        is_best = target.seeks_best
        more_is_better = is_best and target.mode == "max"
        direction = StudyDirection.MAXIMIZE if more_is_better else StudyDirection.MINIMIZE
        study_id = storage.create_new_study([direction], self._study.name)
        storage.set_study_user_attr(study_id, "target", target.words)
        storage.set_study_user_attr(study_id, "workload", self._study.workload.label)
        names = [target.metric if is_best else "time to target [s]"]
        storage.set_study_system_attr(study_id, "study:metric_names", names)
        self._clocks = {}
        for record in sorted(records, key=lambda record: int(record.trial_id[1:])):
            storage.create_new_trial(study_id, self._frozen(record))
            self._clocks[record.trial_id] = _train_s(record)
        os.replace(new, self._path)
        self._storage = _storage_at(self._path)

    def _frozen(self, record: TrialRecord) -> FrozenTrial:
        state = STATES.get(record.status, TrialState.FAIL)
        trial = create_trial(
            state=state,
            params=self._study.space.read(record.params),
            distributions=distributions(self._study.space, record.params),
            value=_value(record) if state == TrialState.COMPLETE else None,
            constraints=self._constraints(record),
            intermediate_values=dict(self._curve(record)),
            user_attrs=_attributes(record),
        )
        if record.started_at and record.finished_at:
            trial.datetime_start = _local(record.started_at)
            trial.datetime_complete = _local(record.finished_at)
        return trial

    def _curve(self, record: TrialRecord) -> Sequence[tuple[int, float]]:
        metric_of = self._study.workload.metric_of
        curve = [(e.step, metric_of(e)) for e in record.runs[-1].evaluations if e.step]
        known = [(step, metric) for step, metric in curve if metric == metric]
        every = -(-len(known) // MOST_VALUES)
        return known[:-1:every] + known[-1:] if known else []

    def _constraints(self, record: TrialRecord) -> dict[str, float] | None:
        curve, target = self._curve(record), target_of(record.workload)
        if record.status not in STATES or not curve:
            return None
        off = target.value - curve[-1][1] if target.mode == "max" else curve[-1][1] - target.value
        # A pass on the way counts for nothing, nor does one that nothing confirmed.
        is_met = record.status == Status.REACHED
        return {"target": min(off, 0.0) if is_met else max(off, 1e-9)}

    def _start(self, trial_id: str, params: dict[str, Any]) -> None:
        assert self._storage is not None
        trial = create_trial(
            state=TrialState.RUNNING,
            params=self._study.space.read(params),
            distributions=distributions(self._study.space, params),
            user_attrs={"trial_id": trial_id},
        )
        study_id = _study_id(self._storage)
        self._ids[trial_id] = self._storage.create_new_trial(study_id, trial)

    def _evaluate(self, trial_id: str, step: int, metric: float) -> None:
        # What is reported after a trial was stopped belongs to no running one.
        if trial_id in self._ids and self._storage is not None:
            self._storage.set_trial_intermediate_value(self._ids[trial_id], step, metric)

    def _finish(self, record: TrialRecord) -> None:
        assert self._storage is not None
        running = self._ids.pop(record.trial_id, None)
        self._clocks[record.trial_id] = _train_s(record)
        if running is None:
            self._storage.create_new_trial(_study_id(self._storage), self._frozen(record))
            return
        for name, value in _attributes(record).items():
            self._storage.set_trial_user_attr(running, name, value)
        for name, value in self._frozen(record).system_attrs.items():
            self._storage.set_trial_system_attr(running, name, value)
        state = STATES.get(record.status, TrialState.FAIL)
        values = [_value(record)] if state == TrialState.COMPLETE else None
        self._storage.set_trial_state_values(running, state, values)

    def _fail(self, trial_id: str, reason: str) -> None:
        running = self._ids.pop(trial_id, None)
        if running is not None and self._storage is not None:
            self._storage.set_trial_user_attr(running, "stop_reason", reason)
            self._storage.set_trial_state_values(running, TrialState.FAIL)


def _os_error(error: BaseException | None) -> OSError | None:
    # Optuna's lock reports a folder that was moved away as a RuntimeError.
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def _local(moment: str) -> datetime:
    return datetime.fromisoformat(moment).astimezone().replace(tzinfo=None)


def _storage_at(path: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(path)))


def _study_id(storage: JournalStorage) -> int:
    (study,) = storage.get_all_studies()
    return study._study_id


def _train_s(record: TrialRecord) -> float:
    return record.runs[-1].clocks.train_s


def _value(record: TrialRecord) -> float:
    """Returns what is minimised: times [s]; or maximised, where the best metric is sought."""
    run, metric = record.runs[-1], final_metric(record)
    if target_of(record.workload).seeks_best and metric is not None:
        return metric
    return run.clocks.train_s if run.time_to_target_s is None else run.time_to_target_s


def _attributes(record: TrialRecord) -> dict[str, Any]:
    run = record.runs[-1]
    attributes = {
        "trial_id": record.trial_id,
        "status": record.status.value,
        "stop_reason": str(run.stop_reason),
        "proposal_reason": str(record.proposal_reason),
        "seed": run.seed,
        "train_s": run.clocks.train_s,
        "value_s": _value(record),
        "time_to_target_s": run.time_to_target_s,
        "steps": run.steps,
        "timing": run.timing.value,
        "peak_memory_gib": run.peak_memory_gib,
        "device": str(record.device),
    }
    return {name: value for name, value in attributes.items() if value is not None}
