"""Reads a study from MLflow as people look at it: while it is searched, or after it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from tune_speed.core.comparability import ComparisonKey, best_metric, board_key, goodness, target_of
from tune_speed.core.records import TrialRecord
from tune_speed.reporting.leaderboard.ranking import make_boards
from tune_speed.reporting.study.view import RunningTrial, StudyView, ViewedTrial, part_key
from tune_speed.tracking import schema
from tune_speed.tracking.notes import NO_NOTE, trial_key
from tune_speed.tracking.reader.leaders import favourites_on
from tune_speed.tracking.reader.queries import with_curves
from tune_speed.tracking.reader.study_snapshot import OpenTrial, StudyPicture
from tune_speed.tracking.reader.tables import TrackedTrial
from tune_speed.tracking.store.store import Store

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
        self._picture = StudyPicture(store, study)

    def read(self, *, finalists: int = 0, with_boards: bool = True) -> StudyView:
        """See `read_study`; boards only `with_boards`. Raises: ServiceError or StorageError."""
        picture, store = self._picture, self._store
        picture.refresh()
        # In the order in which they ended, on which histories and the lines of `watch` rely.
        finished = sorted(
            picture.finished.values(), key=lambda t: (t.record.finished_at, t.record.trial_id)
        )
        if finalists:
            finished = self._with_curves(finished, finalists)
        notes = picture.notes
        viewed = [
            ViewedTrial(
                record=trial.record,
                run_id=trial.run_id,
                url=store.page(trial.experiment_id, trial.run_id),
                has_curve=trial.has_curve,
                note=notes.get(trial_key(trial.record.trial_id, trial.record.kind), NO_NOTE),
            )
            for trial in finished
        ]
        trials = tuple(trial for trial in viewed if trial.record.kind != CERTIFIED)
        certified = tuple(trial for trial in viewed if trial.record.kind == CERTIFIED)
        tags = {search.run_id: search.tags for search in picture.searches}
        view = StudyView(
            study=self.study,
            uri=str(store),
            url=store.page(picture.experiment_id),
            ui_command=store.ui_command,
            read_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            searches=picture.searches,
            trials=trials,
            certified=certified,
            running=tuple(_running(t, tags.get(t.search_run_id, {})) for t in picture.running),
            interrupted=len(picture.interrupted),
        )
        return boarded(view) if with_boards else view

    def with_curve(self, run_id: str) -> TrialRecord:
        """Returns a read trial with its curve. Raises: ServiceError, StorageError, KeyError."""
        (found,) = with_curves(self._store, [self._picture.finished[run_id]])
        return found.record

    def history(self, run_id: str, metric: str) -> list[tuple[float, float]]:
        """Returns training clock [s] and metric. Raises: ServiceError or StorageError."""
        return self._picture.history(run_id, "train_s", schema.metric_key(metric))

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


def boarded(view: StudyView) -> StudyView:
    every = (*view.trials, *view.certified)
    pairs = [(trial.run_id, trial.record) for trial in every]
    said = [{schema.PREFIX + k: v for k, v in s.tags.items()} for s in view.searches]
    keys = {board_key(record) for _, record in pairs}
    found = favourites_on(keys, [schema.unpack_favourites(tags) for tags in said])
    ends = dict.fromkeys([view.study], schema.unpack_range_ends(said[-1] if said else {}))
    boards = make_boards(pairs, with_misses=True, favourites=found, range_ends=ends)
    return replace(view, boards=tuple(boards))


def _best_first(trial: TrackedTrial) -> tuple[float, float]:
    time_s = trial.record.time_to_target_s
    nearest = goodness(best_metric(trial.record), target_of(trial.record.workload))
    return math.inf if time_s is None else time_s, -nearest


def _running(trial: OpenTrial, tags: Mapping[str, str]) -> RunningTrial:
    # A running trial has no record yet: its search says which of its parameters were chosen.
    names = tags.get("searched", "").split(", ")
    return RunningTrial(
        trial_id=trial.trial_id,
        run_id=trial.run_id,
        started_at=trial.started_at,
        params={name: trial.params[name] for name in names if name in trial.params},
        accuracy=trial.metrics.get("accuracy"),
        macro_f1=trial.metrics.get("macro_f1"),
        metrics=trial.metrics,
        train_s=trial.metrics.get("train_s"),
    )
