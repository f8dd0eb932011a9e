"""The studies of a store at a glance, and the runs of their searches."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tune_speed.core.records import Status
from tune_speed.tracking import schema
from tune_speed.tracking.reader.changes import IS_SEARCH
from tune_speed.tracking.reader.queries import BEST_FIRST, IS_TRIAL, key_of
from tune_speed.tracking.reader.tables import OF_THESE_STUDIES, Tables, batches, read_directly
from tune_speed.tracking.record_index import RecordIndex, index_of
from tune_speed.tracking.store.store import Store, runs_with

OLDEST_FIRST = ("attributes.start_time ASC",)


@dataclass(frozen=True, kw_only=True)
class StudySummary:
    """A study at a glance."""

    name: str
    experiment_id: str
    workload: str
    """Name of the workload; empty if the study never said."""
    device: str
    """Name of the device, several joined by `; `; empty if no trial has finished."""
    num_trials: dict[Status, int]
    """Finished trials by status; statuses that none has are left out."""
    best_time_s: float | None
    """Least time to target [s]; None if no trial met the target."""
    best_trial: str | None
    last_activity: str
    """UTC, ISO 8601; empty if no trial has finished."""
    is_running: bool
    """Whether a search has begun and not ended; a killed driver leaves it so until resumed."""


@dataclass(frozen=True, kw_only=True)
class SearchRun:
    """The run of a search as a whole, or of a certification."""

    run_id: str
    experiment_id: str = ""
    started_at: str
    """UTC, ISO 8601."""
    updated_at: str
    is_running: bool
    """Begun and not ended; a killed driver leaves it so until the study is resumed."""
    tags: Mapping[str, str]
    """Without the prefix: what the study file said of the search, versions, commit."""
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def stored(self) -> dict[str, str]:
        """The tags as MLflow has them."""
        return {f"{schema.PREFIX}{key}": value for key, value in self.tags.items()}


def list_studies(store: Store) -> list[StudySummary]:
    """Returns all studies, the latest active first. Raises: ServiceError."""
    names = read_directly(store, _names_in)
    if names is None:
        names = {str(each.experiment_id): name for name, each in store.studies().items()}
    index = index_of(store)

    def read(experiments: list[str]) -> list[StudySummary]:
        searches: dict[str, list[SearchRun]] = {experiment_id: [] for experiment_id in experiments}
        for each in searches_of(store, experiments):
            # A search may have begun meanwhile, in an experiment of its own.
            if each.tags.get("kind") == schema.SEARCH and each.experiment_id in searches:
                searches[each.experiment_id].append(each)
        return [_summarised(names[of], searches[of], index, of) for of in searches if of in names]

    studies = sorted(index.ask(None, read), key=lambda study: study.name)
    return sorted(studies, key=lambda study: study.last_activity, reverse=True)


def _names_in(tables: Tables) -> dict[str, str]:
    return {str(of): name for of, name in tables.query(_STUDIES)}


def searches_of(
    store: Store, experiments: Sequence[str], study: str | None = None
) -> list[SearchRun]:
    """Returns the searches' own runs, and those of certifications, in the order of their begin.

    `experiments`: all of the store, or that of `study`. Raises: ServiceError, StorageError.
    """
    found = read_directly(store, lambda tables: searches_in(tables, study))
    return searches_by_mlflow(store, experiments) if found is None else found


def searches_by_mlflow(store: Store, experiments: Sequence[str]) -> list[SearchRun]:
    """Returns what `searches_in` does, by MLflow's client. Raises: ServiceError, StorageError."""
    return [
        search_run(
            (run.info.run_id, run.info.experiment_id, run.info.start_time, run.info.status),
            run.data.tags,
            run.data.metrics,
        )
        for run in runs_with(store, experiments, {}, also=IS_SEARCH, order_by=OLDEST_FIRST)
    ]


def searches_in(tables: Tables, study: str | None) -> list[SearchRun]:
    """Returns the parent runs of a study, or all, in the order in which they began."""
    found: list[SearchRun] = []
    for some in batches(tables.query(_SEARCHES, {"id": schema.SEARCH_ID}, study=study)):
        runs = [run_id for run_id, *_ in some]
        metrics = _by_run(tables.query(_METRICS, runs=runs))
        tags = _by_run(tables.query(_TAGS, runs=runs))
        found += [search_run(row, tags.get(row[0], {}), metrics.get(row[0], {})) for row in some]
    return found


def search_run(
    row: Sequence[Any], tags: Mapping[str, str], metrics: Mapping[str, float]
) -> SearchRun:
    run_id, experiment_id, start_ms, status = row
    started_at, size = iso(start_ms or 0), len(schema.PREFIX)
    own = {key[size:]: tag for key, tag in tags.items() if key.startswith(schema.PREFIX)}
    return SearchRun(
        run_id=run_id,
        experiment_id=str(experiment_id),
        started_at=started_at,
        updated_at=own.get("updated_at", started_at),
        is_running=status == "RUNNING",
        tags=own,
        metrics=metrics,
    )


def iso(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _by_run(rows: Iterable[Sequence[Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for run_id, key, value in rows:
        found.setdefault(run_id, {})[key] = value
    return found


def _summarised(
    name: str, searches: Sequence[SearchRun], index: RecordIndex, experiment_id: str
) -> StudySummary:
    own, parents = [experiment_id], json.dumps([search.run_id for search in searches])
    of_search = f"{IS_TRIAL} AND parent_id IN (SELECT value FROM json_each(?))"
    counts = index.rows("status, COUNT(*)", own, f"{of_search} GROUP BY status", parents)
    boards = index.rows("DISTINCT board", own, of_search, parents)
    ranked = f"{of_search} AND ranked_s IS NOT NULL {BEST_FIRST} LIMIT 1"
    best = index.rows("trial_id, time_s", own, ranked, parents)
    best_trial, best_time_s = best[0] if best else (None, None)
    tags = {key: value for search in searches for key, value in search.stored.items()}
    found = dict(counts)
    return StudySummary(
        name=name,
        experiment_id=experiment_id,
        workload=tags.get(schema.WORKLOAD, ""),
        device="; ".join(sorted({key_of(board).device for (board,) in boards})),
        num_trials={status: found[status.value] for status in Status if status.value in found},
        best_time_s=best_time_s,
        best_trial=best_trial,
        last_activity=max((s.stored.get(schema.UPDATED_AT, "") for s in searches), default=""),
        is_running=any(search.is_running for search in searches),
    )


_STUDIES = "SELECT e.experiment_id, e.name FROM experiments e WHERE e.experiment_id IN ({studies})"
_SEARCHES = f"""
SELECT r.run_uuid, r.experiment_id, r.start_time, r.status
FROM tags t {{then}} runs r ON r.run_uuid = t.run_uuid
WHERE t.{{key}} = :id AND {OF_THESE_STUDIES}
ORDER BY r.start_time, r.run_uuid
"""
_METRICS = "SELECT m.run_uuid, m.{key}, m.value FROM latest_metrics m WHERE m.run_uuid IN ({runs})"
_TAGS = "SELECT t.run_uuid, t.{key}, t.value FROM tags t WHERE t.run_uuid IN ({runs})"
