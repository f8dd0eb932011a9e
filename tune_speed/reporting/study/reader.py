"""Reads a study from MLflow as people look at it: while it is searched, or after it."""

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tune_speed.core.comparability import ComparisonKey, best_metric, board_key, goodness, target_of
from tune_speed.core.records import TrialRecord
from tune_speed.reporting.leaderboard.ranking import make_boards
from tune_speed.reporting.study.view import OpenTrial, StudyView, ViewedTrial, part_key
from tune_speed.tracking import schema
from tune_speed.tracking.notes import NO_NOTE, Note, notes_of, trial_key
from tune_speed.tracking.reader.leaders import favourites_on
from tune_speed.tracking.reader.queries import experiments_of, with_curves
from tune_speed.tracking.reader.studies import (
    OLDEST_FIRST,
    Ended,
    SearchRun,
    ended_run,
    ended_since,
    iso,
    searches_by_mlflow,
)
from tune_speed.tracking.reader.tables import TrackedTrial
from tune_speed.tracking.store.store import Store, runs_with

CERTIFIED = "certified"
# So far before the latest end a refresh looks back: the writer's clock may be adjusted meanwhile.
END_MARGIN_MS = 5_000

_log = logging.getLogger(__name__)


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
        self._stopped: set[tuple[str, str]] = set()
        self._done: set[tuple[str, str]] = set()
        self._latest_end_ms = 0

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
            interrupted=len(self._stopped - self._done - {trial.key for trial in self._running}),
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
        # In this order, so that a trial that ends meanwhile is seen, and that nothing is missing
        # once a search has ended (its own run ends last).
        self._notes = notes_of(self._store, self._experiment_id)
        searches = tuple(searches_by_mlflow(self._store, [self._experiment_id]))
        alive = list(self._runs("attributes.status = 'RUNNING'"))
        # At its end a search corrects the times of trials that were read before.
        is_over = bool(_active(self._searches) - _active(searches))
        since_ms = 0 if is_over else max(0, self._latest_end_ms - END_MARGIN_MS)
        ended, killed = self._newly_over(alive, since_ms)
        self._searches = searches
        for each in ended:
            self._finish(each)
        self._take([run for run in (*killed, *alive) if schema.TRIAL_ID in run.data.tags])

    def _newly_over(self, alive: Sequence[Any], since_ms: int) -> tuple[list[Ended], list[Any]]:
        ended, killed = self._over(since_ms)
        seen = {run.info.run_id for run in (*alive, *killed)} | {each.run_id for each in ended}
        lost = {trial.run_id for trial in self._running} - seen
        if lost:
            # They ran and are over, but not since then: the clock that says when was set back.
            ended, killed = self._over(0)
            ends_ms = [each.end_ms for each in ended if each.run_id in lost]
            self._latest_end_ms = max(ends_ms, default=self._latest_end_ms)
        return ended, killed

    def _over(self, since_ms: int) -> tuple[list[Ended], list[Any]]:
        killed = self._runs(f"attributes.end_time > {since_ms} AND attributes.status = 'KILLED'")
        return ended_since(self._store, self._experiment_id, since_ms), list(killed)

    def _runs(self, condition: str) -> Iterator[Any]:
        study = [self._experiment_id]
        return runs_with(self._store, study, {}, also=condition, order_by=OLDEST_FIRST)

    def _finish(self, trial: Ended) -> None:
        if trial.run_id not in self._finished:
            self._latest_end_ms = max(self._latest_end_ms, trial.end_ms)
        if trial.record is not None:
            found = TrackedTrial(trial.run_id, self._experiment_id, trial.record)
            self._finished[trial.run_id] = found
        elif trial.key not in self._done:
            _log.warning("run %s is left out: its record cannot be read", trial.run_id)
        self._done.add(trial.key)

    def _take(self, runs: Sequence[Any]) -> None:
        active = _active(self._searches)
        # A running trial has no record yet: its search says which of its parameters were chosen.
        chosen = {s.run_id: s.tags.get("searched", "").split(", ") for s in self._searches}
        running: dict[str, OpenTrial] = {}
        for run in runs:
            if schema.RECORD in run.data.tags:
                # All is there but its last status.
                self._finish(ended_run(run))
                continue
            data, search_run_id = run.data, run.data.tags.get(schema.PARENT, "")
            names = chosen.get(search_run_id, ())
            trial = OpenTrial(
                trial_id=data.tags[schema.TRIAL_ID],
                run_id=run.info.run_id,
                started_at=iso(run.info.start_time),
                params={name: data.params[name] for name in names if name in data.params},
                metrics=data.metrics,
                search_run_id=search_run_id,
            )
            if run.info.status == "RUNNING" and trial.search_run_id in active:
                running[trial.run_id] = trial
            else:
                self._stopped.add(trial.key)
        self._running = tuple(
            each for each in running.values() if each.run_id not in self._finished
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


def _active(searches: Iterable[SearchRun]) -> set[str]:
    return {search.run_id for search in searches if search.is_running}
