"""Reads a study from MLflow as people look at it: while it is searched, or after it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tune_speed.core.comparability import ComparisonKey, best_metric, board_key, goodness, target_of
from tune_speed.core.records import TrialRecord
from tune_speed.reporting.leaderboard.ranking import make_boards
from tune_speed.reporting.study.view import OpenTrial, StudyView, ViewedTrial, part_key
from tune_speed.tracking import schema
from tune_speed.tracking.notes import NO_NOTE, Note, notes_of, trial_key
from tune_speed.tracking.reader.changes import (
    INTERRUPTED,
    IS_TRIAL,
    OLDEST_FIRST,
    SearchRun,
    Seen,
    ask,
    experiments_of,
    iso,
    tracked,
)
from tune_speed.tracking.reader.leaders import favourites_on
from tune_speed.tracking.reader.queries import with_curves
from tune_speed.tracking.reader.tables import TrackedTrial
from tune_speed.tracking.record_index import RecordIndex
from tune_speed.tracking.store.store import Store, runs_with

CERTIFIED = "certified"


def read_study(store: Store, study: str, *, finalists: int = 10) -> StudyView:
    """Returns a study as it is now; of each part, so many `finalists` have curves (0: none at all).

    Those are the fastest, then what came nearest to the target, and all certified trials.

    Raises: ServiceError if the store does not answer, ConfigError without the study, StorageError.
    """
    return StudyReader(store, study).read(finalists=finalists)


class StudyReader:
    """Reads one study again and again; each time it queries MLflow only for what is new."""

    def __init__(self, store: Store, study: str) -> None:
        """Finds the study. Raises: ServiceError or StorageError, as `read_study` does."""
        self.study, self._store = study, store
        (self._experiment_id,) = experiments_of(store, study)
        self._searches: tuple[SearchRun, ...] = ()
        """In the order in which they began."""
        self._notes: dict[str, Note] = {}
        self._finished: dict[str, TrackedTrial] = {}
        """By run id."""
        self._running: tuple[OpenTrial, ...] = ()
        """In the order in which they began."""
        self._abandoned: set[tuple[str, str]] = set()
        """Keys of trials whose search ended before them."""
        self._ended: dict[str, tuple[str, str, bool]] = {}
        """Run of the search, trial and whether it was interrupted, by run id."""
        self._last_change = 0

    def read(self, *, finalists: int = 0, with_boards: bool = True) -> StudyView:
        """See `read_study`; boards only `with_boards`. Raises: ServiceError or StorageError."""
        self._refresh()
        store = self._store
        # In the order in which they ended, on which histories and the lines of `watch` rely.
        finished = sorted(
            self._finished.values(), key=lambda t: (t.record.finished_at, t.record.trial_id)
        )
        if finalists:
            finished = self._with_curves(finished, finalists)
        viewed = [
            ViewedTrial(
                record=trial.record,
                run_id=trial.run_id,
                url=store.page(trial.experiment_id, trial.run_id),
                has_curve=trial.has_curve,
                note=self._notes.get(trial_key(trial.record.trial_id, trial.record.kind), NO_NOTE),
            )
            for trial in finished
        ]
        trials = tuple(trial for trial in viewed if trial.record.kind != CERTIFIED)
        certified = tuple(trial for trial in viewed if trial.record.kind == CERTIFIED)
        view = StudyView(
            study=self.study,
            uri=str(store),
            url=store.page(self._experiment_id),
            ui_command=store.ui_command,
            read_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            searches=self._searches,
            trials=trials,
            certified=certified,
            running=self._running,
            interrupted=self._num_interrupted(),
        )
        return boarded(view) if with_boards else view

    def with_curve(self, run_id: str) -> TrialRecord:
        """Returns a read trial with its curve. Raises: ServiceError, StorageError, KeyError."""
        (found,) = with_curves(self._store, [self._finished[run_id]])
        return found.record

    def history(self, run_id: str, metric: str) -> list[tuple[float, float]]:
        """Returns training clock [s] and metric. Raises: ServiceError or StorageError."""

        def read(client: Any) -> list[dict[int, float]]:
            names = ("train_s", schema.metric_key(metric))
            found = [client.get_metric_history(run_id, name) for name in names]
            return [{point.step: point.value for point in points} for points in found]

        xs, ys = self._store.call(read)
        return [(xs[step], ys[step]) for step in sorted(xs.keys() & ys.keys())]

    def _with_curves(self, trials: Sequence[TrackedTrial], finalists: int) -> list[TrackedTrial]:
        # Curves take a query each: only those that figures can draw are read.
        by_part: dict[ComparisonKey, list[TrackedTrial]] = {}
        for trial in sorted(trials, key=_best_first):
            if trial.record.kind != CERTIFIED:
                by_part.setdefault(part_key(trial.record), []).append(trial)
        best = [trial for part in by_part.values() for trial in part[:finalists]]
        chosen = best + [trial for trial in trials if trial.record.kind == CERTIFIED]
        found = {each.run_id: each for each in with_curves(self._store, chosen)}
        return [found.get(trial.run_id, trial) for trial in trials]

    def _refresh(self) -> None:
        """Reads what is new; all or nothing. Raises: ServiceError or StorageError."""
        store, study = self._store, [self._experiment_id]
        notes = notes_of(store, self._experiment_id)
        # First, so that a trial that ends meanwhile is seen.
        running = f"attributes.status = 'RUNNING' AND {IS_TRIAL}"
        alive = list(runs_with(store, study, {}, also=running, order_by=OLDEST_FIRST))
        searches = ask(store, self.study, self._take)
        self._notes, self._searches = notes, searches
        opened = [self._opened(run) for run in alive if run.info.run_id not in self._finished]
        # Where a driver was killed, its trials' runs have not ended either.
        active = {search.run_id for search in searches if search.is_running}
        self._running = tuple(each for each in opened if each.search_run_id in active)
        self._abandoned = {each.key for each in opened if each.search_run_id not in active}

    def _take(self, index: RecordIndex, seen: Seen) -> tuple[SearchRun, ...]:
        columns = "run_id, experiment_id, parent_id, trial_id, status, is_deleted, change"
        rows = index.rows(columns, seen.studies, "change > ?", self._last_change)
        alive = [row for row in rows if not row[5]]
        found = list(tracked(index, (row for row in alive if row[4] != INTERRUPTED)))
        for run_id, *_ in rows:
            self._finished.pop(run_id, None)
            self._ended.pop(run_id, None)
        self._finished |= {trial.run_id: trial for trial in found}
        self._ended |= {row[0]: (row[2], row[3], row[4] == INTERRUPTED) for row in alive if row[3]}
        self._last_change = max((row[6] for row in rows), default=self._last_change)
        return tuple(seen.searches)

    def _num_interrupted(self) -> int:
        stopped = {
            (of, trial_id) for of, trial_id, is_stopped in self._ended.values() if is_stopped
        }
        over = {
            (of, trial_id) for of, trial_id, is_stopped in self._ended.values() if not is_stopped
        }
        return len((stopped | self._abandoned) - over - {trial.key for trial in self._running})

    def _opened(self, run: Any) -> OpenTrial:
        data, search_run_id = run.data, run.data.tags.get(schema.PARENT, "")
        # A running trial has no record yet: its search says which of its parameters were chosen.
        of = (s.tags.get("searched", "") for s in self._searches if s.run_id == search_run_id)
        names = next(of, "").split(", ")
        return OpenTrial(
            trial_id=data.tags[schema.TRIAL_ID],
            run_id=run.info.run_id,
            started_at=iso(run.info.start_time),
            params={name: data.params[name] for name in names if name in data.params},
            metrics=data.metrics,
            search_run_id=search_run_id,
        )


def boarded(view: StudyView) -> StudyView:
    every = (*view.trials, *view.certified)
    pairs = [(trial.run_id, trial.record) for trial in every]
    said = [search.stored for search in view.searches]
    keys = {board_key(record) for _, record in pairs}
    found = favourites_on(keys, [schema.unpack_favourites(tags) for tags in said])
    ends = dict.fromkeys([view.study], schema.unpack_range_ends(said[-1] if said else {}))
    boards = make_boards(pairs, with_misses=True, favourites=found, range_ends=ends)
    return replace(view, boards=tuple(boards))


def _best_first(trial: TrackedTrial) -> tuple[float, float]:
    time_s = trial.record.time_to_target_s
    nearest = goodness(best_metric(trial.record), target_of(trial.record.workload))
    return math.inf if time_s is None else time_s, -nearest
